# SPDX-License-Identifier: Apache-2.0
"""Release packs: equal inputs give equal bytes, one changed byte is named, and documents that contradict are found."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

import veilwood as vw
from veilwood import estimators
from veilwood.cli.main import main
from veilwood.errors import FileError, LedgerError, ParameterError, SignatureError, UseError, VeilwoodError
from veilwood.evaluation.evaluate import Evaluation, evaluation_plan
from veilwood.models import file as model_file
from veilwood.privacy import signature
from veilwood.privacy.loss import Loss
from veilwood.release_pack import pack as packs
from veilwood.release_pack.pack import CONTENTS, MANIFEST, environment_bom, is_pack, verify_pack, write_pack
from veilwood_testing.release_packs import card_text, fit_and_charge

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    ledger = vw.SQLiteLedger(folder / "visits.db", epsilon=3, population="patients of clinic X")
    forest = fit_and_charge(vw.PrivateForestClassifier, ledger, epsilon=1.0)
    vw.save(forest, folder / "visits.veilwood")
    car = vw.datasets.car()
    vw.evaluate(forest, car.X[:400], car.y[:400], epsilon=0.1, ledger=ledger).save(folder / "visits.quality.json")
    (folder / "card.toml").write_text(card_text())
    for name in ("clinic.key", "stranger.key"):
        signature.generate_key_pair(folder / name)
    write_pack_in(folder, "pack")
    return folder


def write_pack_in(folder: Path, name: str, **changes: Any) -> Path:
    inputs = {
        "ledger": vw.SQLiteLedger(folder / "visits.db", epsilon=3, population="patients of clinic X"),
        "key": folder / "clinic.key", "card": folder / "card.toml", "evaluation": folder / "visits.quality.json",
    }  # fmt: skip
    return write_pack(changes.pop("model", folder / "visits.veilwood"), folder / name, **{**inputs, **changes})


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A fresh copy of a folder with a pack and all that it was made from."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def failures(here: Path, name: str = "pack") -> list[str]:
    return [check.question for check in verify_pack(here / name, here / "clinic.key.pub") if not check.holds]


def test_a_pack_holds_everything_and_is_verified(here: Path) -> None:
    assert {path.name for path in (here / "pack").iterdir()} == {
        *CONTENTS, MANIFEST, f"{MANIFEST}.sig",
    } - {"plan.json.sig"}  # fmt: skip
    for name in ("pack", "pack.zip"):
        assert is_pack(here / name)
        checks = verify_pack(here / name, here / "clinic.key.pub")
        assert [check for check in checks if not check.holds] == []
        assert any("noisy values" in check.found for check in checks)
    assert not is_pack(here / "visits.veilwood")
    assert vw.load(here / "pack" / "model.veilwood", signed_by=here / "clinic.key.pub").privacy_.epsilon == 1.0


def test_equal_inputs_give_equal_bytes(here: Path) -> None:
    write_pack_in(here, "again")
    assert (here / "again.zip").read_bytes() == (here / "pack.zip").read_bytes()
    for path in (here / "pack").iterdir():
        assert path.read_bytes() == (here / "again" / path.name).read_bytes()


def test_the_date_is_that_of_the_charge_or_of_the_build(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = json.loads((here / "pack" / "ledger.json").read_text())["entries"][0]
    assert json.loads((here / "pack" / MANIFEST).read_text())["date"] == entry["time"][:10]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    write_pack_in(here, "dated")
    assert json.loads((here / "dated" / MANIFEST).read_text())["date"] == "1970-01-02"
    for odd in ("yesterday", "1e400", "9" * 40):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", odd)
        with pytest.raises(UseError):
            write_pack_in(here, "odd")


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_changed_byte_is_found_and_named(here: Path, place: str) -> None:
    for path in sorted((here / "pack").iterdir()):
        content = bytearray(path.read_bytes())
        position = {"first": 0, "middle": len(content) // 2, "last": len(content) - 1}[place]
        content[position] ^= 1
        kept = path.read_bytes()
        path.write_bytes(content)
        if path.name.startswith(MANIFEST):
            with pytest.raises(SignatureError, match=r"manifest\.json"):
                verify_pack(here / "pack", here / "clinic.key.pub")
        else:
            assert [name for name in failures(here) if name.startswith(f"{path.name} (")], path.name
        path.write_bytes(kept)
    assert failures(here) == []


def test_every_byte_of_a_signature_counts(here: Path) -> None:
    path = here / "pack" / f"{MANIFEST}.sig"
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(SignatureError):
            verify_pack(here / "pack", here / "clinic.key.pub")
    path.write_bytes(content.replace(b"\n", b" \n", 1))  # the same values, written otherwise
    with pytest.raises(SignatureError):
        verify_pack(here / "pack", here / "clinic.key.pub")


def test_a_changed_byte_of_an_archive_is_found(here: Path) -> None:
    content = (here / "pack.zip").read_bytes()
    for position in range(3, len(content), len(content) // 40):
        (here / "bad.zip").write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        try:
            found = failures(here, "bad.zip")
        except SignatureError:
            continue
        assert found != [], position
    for damaged in (content[:-1], content + b"x", content[:1000], b"PK"):
        (here / "bad.zip").write_bytes(damaged)
        try:
            assert failures(here, "bad.zip") != []
        except SignatureError:
            continue


def test_missing_added_and_linked_files_are_named(here: Path) -> None:
    shutil.copytree(here / "pack", here / "other")
    (here / "other" / "schema.md").unlink()
    (here / "other" / "rows.csv").write_text("x")
    (here / "other" / "report.html").unlink()
    (here / "other" / "report.html").symlink_to(here / "pack" / "report.html")
    found = {
        check.question: check.found for check in verify_pack(here / "other", here / "clinic.key.pub") if not check.holds
    }
    assert {name.split(" (")[0] for name in found} >= {"schema.md", "report.html", "Is anything else in it?"}
    assert "rows.csv" in found["Is anything else in it?"]


def test_an_archive_cannot_write_elsewhere(here: Path) -> None:
    for name in ("../evil", "a/..", "/etc/x y", "a/b\\c"):
        with zipfile.ZipFile(here / "evil.zip", "w") as archive:
            archive.writestr(name, "x")
        with pytest.raises(SignatureError):
            verify_pack(here / "evil.zip", here / "clinic.key.pub")
    assert not (here / "evil").exists()


def test_another_key_and_no_signature_are_refused(here: Path) -> None:
    with pytest.raises(SignatureError):
        verify_pack(here / "pack", here / "stranger.key.pub")
    (here / "pack" / f"{MANIFEST}.sig").unlink()
    with pytest.raises(SignatureError):
        verify_pack(here / "pack", here / "clinic.key.pub")


def test_a_signature_can_be_checked_without_the_library(here: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    signed = json.loads((here / "pack" / f"{MANIFEST}.sig").read_text())
    text = json.dumps(signed["statement"], sort_keys=True, separators=(",", ":"))
    key = load_pem_public_key((here / "clinic.key.pub").read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(base64.b64decode(signed["signature"]), b"veilwood signature 1\n" + text.encode())  # as in docs/files.md
    digest = hashlib.sha256((here / "pack" / MANIFEST).read_bytes()).hexdigest()
    assert signed["statement"]["manifest_hash"] == digest
    for line in (here / "pack" / "SHA256SUMS").read_text().splitlines():
        expected, _, name = line.partition("  ")
        assert hashlib.sha256((here / "pack" / name).read_bytes()).hexdigest() == expected


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


CONTRADICTIONS = {
    "a smaller epsilon in the record": edit("registry.yaml", "epsilon: 1.0", "epsilon: 0.1"),
    "a smaller epsilon on the card": edit("README.md", "epsilon = 1", "epsilon = 0.1"),
    "a hazard that was answered otherwise": edit("checklist.md", "**not covered**", "**proved**"),
    "a certificate with less": edit("certificate.json", '"epsilon": 1.0', '"epsilon": 0.5'),
    "a source of bounds": edit("schema.md", "**not stated**", "law"),
    "a cancelled charge": edit("ledger.json", '"state": "committed"', '"state": "cancelled"'),
    "a larger budget": edit("ledger.json", '"epsilon": "3"', '"epsilon": "1/2"'),
    "another plan": edit("plan.json", '"public_seed": 0', '"public_seed": 1'),
    "a better score": edit("quality.json", '"confidence": 0.95', '"confidence": 0.5'),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_documents_that_contradict_the_model_are_found_though_they_are_signed(here: Path, case: str) -> None:
    folder = here / "pack"
    CONTRADICTIONS[case](folder)
    seal_again(here)
    assert failures(here) != []


def seal_again(here: Path, model_content: bytes | None = None) -> None:
    """Sign a changed folder as its publisher could; ``model_content`` if the model itself was changed."""
    folder = here / "pack"
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, facts in manifest["files"].items():
        facts["sha256"] = packs._sha256((folder / name).read_bytes())
    content = packs._to_json(manifest).encode()
    (folder / MANIFEST).write_bytes(content)
    original = (folder / "model.veilwood").read_bytes() if model_content is None else model_content
    (here / "original.veilwood").write_bytes(original)
    payload = packs._pack_payload(content, model_file.load(here / "original.veilwood"), original)
    signature.write_signature(folder / MANIFEST, payload, here / "clinic.key")


ODD_CONTENTS = [b"", b"[]", b"{}", b"null", b"1", b"\xff", b'{"entries": [], "rows": 3}', b'{"entries": [{"id": 2}]}']


@pytest.mark.parametrize("content", ODD_CONTENTS)
def test_odd_contents_under_a_valid_signature_are_a_finding_and_no_crash(here: Path, content: bytes) -> None:
    for name in (name for name in CONTENTS if (here / "pack" / name).exists() and name != "SHA256SUMS"):
        kept = (here / "pack" / name).read_bytes()
        (here / "pack" / name).write_bytes(content)
        seal_again(here, kept if name == "model.veilwood" else None)
        found = failures(here)
        assert found or name in ("report.html", "plan.json.sig"), name
        (here / "pack" / name).write_bytes(kept)


def test_a_pack_that_was_sealed_again_unchanged_is_verified(here: Path) -> None:
    seal_again(here)
    assert failures(here) == []


def test_the_measurements_of_another_model_are_found(here: Path) -> None:
    other = fit_and_charge(vw.PrivateForestClassifier, None, epsilon=1.0)
    vw.export_measurements(other, here / "pack" / "measurements.parquet")
    seal_again(here)
    assert failures(here) == ["Does the model follow from its released measurements?"]


def test_a_model_without_its_charge_is_not_packed(here: Path) -> None:
    empty = vw.SQLiteLedger(here / "empty.db", epsilon=3)
    with pytest.raises(LedgerError):
        write_pack_in(here, "new", ledger=empty)
    other = fit_and_charge(vw.PrivateForestClassifier, vw.SQLiteLedger(here / "other.db", epsilon=3), epsilon=1.0)
    vw.save(other, here / "other.veilwood")
    not_private = fit_and_charge(vw.PrivateForestClassifier, None, epsilon=float("inf"))
    vw.save(not_private, here / "none.veilwood")
    with pytest.raises(UseError):
        write_pack_in(here, "new", model=here / "none.veilwood", evaluation=None)
    with pytest.raises(VeilwoodError):
        write_pack_in(here, "new", model=here / "other.veilwood")  # the evaluation is of another model
    assert not (here / "new").exists()
    assert not (here / "new.zip").exists()
    assert [path.name for path in here.iterdir() if path.name.startswith(".pack")] == []


def test_an_evaluation_that_was_not_charged_is_not_packed(here: Path) -> None:
    car, forest = vw.datasets.car(), vw.load(here / "visits.veilwood")
    vw.evaluate(forest, car.X, car.y, epsilon=0.1, ledger=None).save(here / "free.json")
    with pytest.raises(LedgerError):
        write_pack_in(here, "new", evaluation=here / "free.json")


def test_an_evaluation_charged_to_another_ledger_of_the_same_name_is_not_packed(here: Path) -> None:
    car, forest = vw.datasets.car(), vw.load(here / "visits.veilwood")
    (here / "elsewhere").mkdir()
    elsewhere = vw.SQLiteLedger(here / "elsewhere" / "visits.db", epsilon=1000)
    foreign = vw.evaluate(forest, car.X, car.y, epsilon=100, ledger=elsewhere)
    assert (foreign.privacy.ledger, foreign.privacy.ledger_entry) == (
        forest.privacy_.ledger, forest.privacy_.ledger_entry,
    )  # fmt: skip
    foreign.save(here / "foreign.json")
    with pytest.raises(LedgerError):
        write_pack_in(here, "new", evaluation=here / "foreign.json")
    foreign = vw.evaluate(forest, car.X, car.y, epsilon=1.0, ledger=vw.MemoryLedger(epsilon=3))
    same_loss = replace(foreign, privacy=replace(foreign.privacy, ledger=forest.privacy_.ledger, ledger_entry=2))
    ledger = json.loads((here / "pack" / "ledger.json").read_text())
    assert not packs._shares_charge(same_loss, forest)  # of no held-out part
    assert not packs._has_own_charge(same_loss, ledger)


def test_a_pack_with_an_evaluation_that_nothing_pays_for_is_not_verified(here: Path) -> None:
    evaluation = Evaluation.load(here / "visits.quality.json")
    ledger = json.loads((here / "pack" / "ledger.json").read_text())
    own = {each["id"]: each for each in ledger["entries"]}[evaluation.privacy.ledger_entry]
    assert packs._has_own_charge(evaluation, ledger)
    smaller = Loss.pure(Fraction(1, 100)).to_dict()
    for change in ({"plan": "0" * 64}, {"state": "reserved"}, {"neighbours": "two rows"}, {"loss_exact": smaller}):
        entries = [{**each, **change} if each is own else each for each in ledger["entries"]]
        assert not packs._has_own_charge(evaluation, {**ledger, "entries": entries}), change
    assert not packs._has_own_charge(evaluation, {**ledger, "ledger": "ledger other.db"})


def test_an_unsettled_charge_is_not_packed(here: Path) -> None:
    ledger = vw.SQLiteLedger(here / "crash.db", epsilon=3)
    settle, ledger.settle = ledger.settle, lambda *_: None  # type: ignore[method-assign]
    forest = fit_and_charge(vw.RandomTreesClassifier, ledger, epsilon=1.0, n_estimators=2)
    ledger.settle = settle  # type: ignore[method-assign]
    vw.save(forest, here / "crash.veilwood")
    given = {"model": here / "crash.veilwood", "ledger": ledger, "evaluation": None}
    with pytest.raises(LedgerError):
        write_pack_in(here, "new", **given)
    ledger.resolve(forest.privacy_.ledger_entry, "power failure")
    write_pack_in(here, "new", **given)
    assert failures(here, "new") == []


def test_a_held_out_evaluation_shares_the_charge(here: Path) -> None:
    car, ledger = vw.datasets.car(), vw.SQLiteLedger(here / "held.db", epsilon=3)
    fitted = vw.RandomTreesClassifier(car.schema, epsilon=1.0, random_state=0, ledger=ledger, n_estimators=2)
    fitted.fit(car.X, car.y, holdout_fraction=0.3)
    vw.save(fitted, here / "held.veilwood")
    held = fitted.evaluation_
    held.save(here / "held.json")
    write_pack_in(here, "new", model=here / "held.veilwood", ledger=ledger, evaluation=here / "held.json")
    assert failures(here, "new") == []
    larger = evaluation_plan(fitted, Loss.pure(Fraction(2)), fitted.plan_.neighbours, share=0.3)
    assert packs._shares_charge(held, fitted)
    assert not packs._shares_charge(replace(held, plan=larger), fitted)
    whole = evaluation_plan(fitted, held.plan.loss, fitted.plan_.neighbours)
    assert not packs._shares_charge(replace(held, plan=whole), fitted)


def test_a_ledger_with_a_release_that_is_not_private_says_so(here: Path) -> None:
    ledger = vw.SQLiteLedger(here / "void.db")
    fit_and_charge(vw.RandomTreesClassifier, ledger, epsilon=float("inf"), n_estimators=2)
    vw.save(fit_and_charge(vw.RandomTreesClassifier, ledger, n_estimators=2), here / "void.veilwood")
    write_pack_in(here, "new", model=here / "void.veilwood", ledger=ledger, evaluation=None)
    assert failures(here, "new") == []
    rows = json.loads((here / "new" / "checklist.json").read_text())["rows"]
    (row,) = (row for row in rows if row["topic"] == "Composition and budget")
    assert row["answer"] == "not covered"


def test_an_approved_plan_keeps_its_signature(here: Path) -> None:
    forest = vw.PrivateForestClassifier(vw.datasets.car().schema, epsilon=1.0, random_state=0)
    for name, plan in (("plan.json", forest.plan()), ("foreign.json", forest.set_params(epsilon=2.0).plan())):
        plan.save(here / name)
        model_file.sign(here / name, here / "stranger.key")
    write_pack_in(here, "new", plan=here / "plan.json")
    assert failures(here, "new") == []
    assert model_file.verify(here / "new" / "plan.json", here / "stranger.key.pub")["kind"] == "plan"
    with pytest.raises(UseError):
        write_pack_in(here, "other", plan=here / "foreign.json")
    shutil.copy(here / "foreign.json.sig", here / "plan.json.sig")
    with pytest.raises(SignatureError):
        write_pack_in(here, "other", plan=here / "plan.json")


def test_releases_of_a_series_are_packed_with_the_plan_of_the_series(here: Path) -> None:
    car, ledger = vw.datasets.car(), vw.SQLiteLedger(here / "series.db", epsilon=3)
    settings: dict[str, Any] = {"n_estimators": 4, "max_depth": 2, "trees": "shared", "random_state": 0}
    forest = vw.RandomTreesClassifier(car.schema, epsilon=3, **settings)
    series = vw.ReleaseSeries(forest, releases=4, period="month", ledger=ledger)
    table = car.X.assign(month=np.arange(len(car.X)) % 4 + 1)
    series.plan().save(here / "series.json")
    for number in (1, 2):
        vw.save(series.release(table, car.y), here / f"{number}.veilwood")
        given = {"model": here / f"{number}.veilwood", "ledger": ledger, "evaluation": None}
        write_pack_in(here, f"new-{number}", **given)
        assert failures(here, f"new-{number}") == []
        packed = vw.Plan.load(here / f"new-{number}" / "plan.json")
        assert packed.fingerprint() == vw.Plan.load(here / "series.json").fingerprint()


def test_existing_folders_and_odd_places_are_refused(here: Path) -> None:
    with pytest.raises(UseError):
        write_pack_in(here, "pack")
    with pytest.raises(FileError):
        write_pack_in(here, "nowhere/pack")
    with pytest.raises(VeilwoodError):
        write_pack_in(here, "new", model=here / "missing.veilwood")
    (here / "card.toml").write_text(card_text(purpose=""))
    with pytest.raises(ParameterError):
        write_pack_in(here, "new")


def test_the_bill_of_materials_names_what_is_installed() -> None:
    bom = environment_bom("2031-05-05")
    assert bom == environment_bom("2031-05-05")
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    names = {each["name"] for each in bom["components"]}
    assert {"veilwood", "numpy", "scikit-learn", "CPython"} <= names
    references = [each["bom-ref"] for each in bom["components"]]
    assert len(set(references)) == len(references)
    assert bom["dependencies"][0]["dependsOn"] == references
    assert bom != environment_bom("2031-05-06")


CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name in estimators.__all__ if name != "MatrixForestPredictor"},
    "PrivateForestClassifier, a delta and persons": {"delta": 1e-6, "privacy_unit": {"id": "person", "at_most": 2}},
    "RandomTreesRegressor, rows replaced": {"adjacency": "replace-one"},
    "RandomTreesClassifier, weak": {"epsilon": 6.0, "n_estimators": 2, "trees": "disjoint"},
}


@pytest.mark.parametrize("case", CASES)
def test_every_estimator_and_guarantee_can_be_packed(case: str, made: Path, tmp_path: Path) -> None:
    ledger = vw.SQLiteLedger(tmp_path / "visits.db", epsilon=8, delta=1e-5)
    forest = fit_and_charge(getattr(vw, case.partition(",")[0]), ledger, **CASES[case])
    vw.save(forest, tmp_path / "model.veilwood")
    archive = write_pack(
        tmp_path / "model.veilwood", tmp_path / "pack", ledger=ledger, key=made / "clinic.key",
        card=made / "card.toml",
    )  # fmt: skip
    checks = verify_pack(archive, made / "clinic.key.pub")
    assert [check for check in checks if not check.holds] == []
    record = yaml.safe_load((tmp_path / "pack" / "registry.yaml").read_text())
    assert record["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == forest.privacy_.epsilon
    assert forest.privacy_.strength.label in (tmp_path / "pack" / "README.md").read_text()


def test_no_name_of_a_table_leaves_the_ledger(here: Path) -> None:
    ledger = vw.SQLiteLedger(here / "table.db", epsilon=3)
    table = vw.datasets.car().X.assign(**{vw.datasets.car().schema.target.name: vw.datasets.car().y})
    table.to_csv(here / "ward-7-of-dr-who.csv", index=False)
    forest = vw.RandomTreesClassifier(vw.datasets.car().schema, n_estimators=2, ledger=ledger, random_state=0)
    vw.save(forest.fit(here / "ward-7-of-dr-who.csv"), here / "table.veilwood")
    write_pack_in(here, "new", model=here / "table.veilwood", ledger=ledger, evaluation=None)
    assert "ward-7" in str(ledger.entries()[0].table)
    assert [path.name for path in (here / "new").iterdir() if b"ward-7-of" in path.read_bytes()] == []


def test_the_commands(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(here)
    assert main(["pack", "--new-card", "new.toml"]) == 0
    assert main(["pack", "--new-card", "new.toml"]) == 2  # it exists
    given = ["pack", "visits.veilwood", "--ledger", "visits.db", "--key", "clinic.key", "-o", "new"]
    assert main([*given, "--card", "new.toml"]) == 2  # no answers
    assert main(given) == 2
    assert main([*given, "--card", "card.toml"]) == 0
    capsys.readouterr()
    assert (here / "new.zip").read_bytes() == (here / "pack.zip").read_bytes()  # the evaluation is found by its name
    assert main(["verify", "new.zip", "--signed-by", "clinic.key.pub"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"holds", "open"}
    (here / "new" / "report.html").write_text("<p>better</p>")
    assert main(["verify", "new", "--signed-by", "clinic.key.pub"]) == 4
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if line.startswith("FAILS  report.html")]
    assert "report.html" in printed.err
    assert main(["verify", "new", "--signed-by", "clinic.key.pub", "--json"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["holds"] is False
    assert main(["verify", "pack", "--signed-by", "clinic.key.pub", "--plan", "plan.json"]) == 2
