# SPDX-License-Identifier: Apache-2.0
"""From a hospital's messy CSV file to a signed report, by commands: draft, review, check, fit, predict, sign.

The patients come from a public data set (442 people with diabetes; Efron and others 2004): age, sex, body mass index,
and blood pressure. Readmission depends on the progression of their illness. The rest of the table is synthetic:
semicolons, Latin-1, decimal commas, euro amounts, ids, dates, postcodes, notes, umlauts and missing values.

Run: python examples/messy_table.py [FOLDER] [ROWS]
"""

import random
import sys
from pathlib import Path

from sklearn.datasets import load_diabetes

from veilwood.cli.main import main
from veilwood.drafting.review import Review

WARDS = ["Chirurgie", "Kardiologie", "Gynäkologie", "Geburtshilfe", "Innere", "Pädiatrie"]
CITIES = ["Köln", "München", "Düsseldorf", "Bonn", "Aachen", "Münster", "Görlitz"]
SURNAMES = ["Müller", "Schäfer", "Groß", "Weiß", "Özdemir", "Jäger", "Böhm", "Kühn"]
WORDS = [
    "klagt",
    "über",
    "Schmerzen",
    "seit",
    "gestern",
    "Befund",
    "unauffällig",
    "Kontrolle",
    "Allergie",
    "gegen",
    "Nüsse",
]
HEADER = (
    "fallnummer;patient_id;name;geburtsdatum;aufnahme;entlassung;uhrzeit;plz;ort;geschlecht;alter;gewicht;groesse;bmi;"
    "puls;systolic;diastolic;temperatur;spo2;schmerz;crp;kreatinin;leukozyten;raucher;diabetes;privat_versichert;"
    "station;blutgruppe;kosten;zuzahlung;vorbesuche;notiz;wiederaufnahme"
)
NAMES = HEADER.split(";")
PATIENTS, PROGRESSION = load_diabetes(return_X_y=True, scaled=False)  # age, sex, body mass index, blood pressure, ...


def german(number: float, places: int = 1) -> str:
    return f"{number:,.{places}f}".replace(",", " ").replace(".", ",").replace(" ", ".")


def day(chance: random.Random, first: int, last: int) -> str:
    return f"{chance.randint(1, 28):02d}.{chance.randint(1, 12):02d}.{chance.randint(first, last)}"


def row(number: int, patients: int, chance: random.Random) -> list[str]:
    who = chance.randrange(patients)
    person = random.Random(who)  # values that are the same in all visits of a patient
    age, sex, index, pressure = (float(number) for number in PATIENTS[who % len(PATIENTS)][:4])
    progress, height = float(PROGRESSION[who % len(PATIENTS)]), person.gauss(171, 10)
    smokes, diabetic = person.random() < 0.25, person.random() < 0.1 + age / 500
    crp, costs = chance.expovariate(0.1), chance.expovariate(1 / 4000)
    again = chance.random() < progress / 350  # progress is 25 to 346
    cells = [
        f"F{100000 + number}", f"{10000 + who}", f"{person.choice(SURNAMES)}, {chr(65 + who % 26)}.",
        day(person, 1920, 2020), day(chance, 2022, 2025), day(chance, 2022, 2025),
        f"{chance.randint(0, 23):02d}:{chance.randint(0, 59):02d}", f"{person.randint(1067, 99998):05d}",
        person.choices(CITIES, [30, 25, 20, 10, 8, 6, 1])[0], "mw"[int(sex) - 1], str(round(age)),
        german(index * (height / 100) ** 2), german(height, 0), german(index), str(round(chance.gauss(80, 12))),
        str(round(1.4 * pressure)), str(round(0.8 * pressure)), german(chance.gauss(37, 0.6)),
        german(min(100.0, chance.gauss(96, 2)), 0), str(chance.randint(0, 10)), german(crp, 2),
        german(chance.gauss(0.9, 0.2), 2), german(chance.gauss(7, 2)), "ja" if smokes else "nein",
        "1" if diabetic else "0", chance.choice("jn"), chance.choices(WARDS, [30, 25, 15, 10, 19, 1])[0],
        person.choice(["A", "B", "AB", "0"]), f"{german(costs, 2)} €", f"{german(10 + costs / 100, 2)} €",
        str(chance.randint(0, 12)), " ".join(chance.choices(WORDS, k=8)), "ja" if again else "nein",
    ]  # fmt: skip
    may_lack = [NAMES.index(name) for name in ("gewicht", "crp", "puls", "blutgruppe", "ort")]
    for place in may_lack:
        if chance.random() < 0.08:
            cells[place] = chance.choice(["", "k.A."])
    return cells


def write_table(path: Path, rows: int, seed: int = 0) -> None:
    """Write the table like a hospital's export: semicolons, Latin-1 with a euro sign, decimal commas."""
    chance = random.Random(seed)
    lines = [HEADER, *(";".join(row(n, max(rows // 2, 1), chance)) for n in range(rows))]
    path.write_text("\n".join(lines) + "\n", encoding="cp1252")


def go_through(draft: Path) -> None:
    """Answer the prompts of ``veilwood schema review`` in a script; a person would do this at the terminal."""
    known: dict[str, dict[str, object]] = {
        "crp": {"lower": 0, "upper": 500},
        "kreatinin": {"lower": 0, "upper": 20},
        "leukozyten": {"lower": 0, "upper": 100},
        "kosten": {"lower": 0, "upper": 100000},
        "zuzahlung": {"lower": 0, "upper": 1000},
        "vorbesuche": {"lower": 0, "upper": 50},
        "station": {"values": WARDS},
        "ort": {"values": CITIES},
    }
    review = Review.load(draft)
    while (question := review.next_question()) is not None:
        if question.proposal is not None:
            review.accept_known()
        elif question.name in known:
            review.declare("handbook of the laboratory and list of wards, both public", **known[question.name])
        else:
            review.exclude()
    review.save(draft)


def run(*words: object) -> None:
    """Run one command of the command line."""
    print("\n$ veilwood", *words, flush=True)
    assert main([str(word) for word in words]) == 0


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    n_rows = int(sys.argv[2]) if len(sys.argv) > 2 else 30_000
    table, schema, model, ledger = (folder / f"visits.{end}" for end in ("csv", "json", "veilwood", "db"))
    write_table(table, n_rows)
    run("schema", "draft", table, "--target", "wiederaufnahme", "--dates", "month,weekday", "-o", schema)
    go_through(schema)
    run("schema", "check", table, "--schema", schema)
    run("ledger", "create", ledger, "--epsilon", "2")
    run("fit", table, "--schema", schema, "--estimator", "private-forest", "--epsilon", "1", "--ledger", ledger,
        "--holdout", "0.3", "-o", model)  # fmt: skip
    run("predict", model, table, "--keep", "fallnummer", "--proba", "-o", folder / "predictions.csv")
    key = folder / "clinic.key"
    run("sign", "--new-key", key)
    run("sign", model, "--key", key)
    run("verify", model, "--signed-by", f"{key}.pub")
    run("report", model, "--ledger", ledger, "--signed-by", f"{key}.pub", "-o", folder / "visits.html")
