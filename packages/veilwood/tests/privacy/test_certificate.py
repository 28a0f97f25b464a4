# SPDX-License-Identifier: Apache-2.0
"""What a certificate rests on, for every kind of release, written out here a second time; and how it is shown.

The table below is not computed from the library: an assumption that a certificate loses, or gains, is noticed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.errors import ModelFileError, PartyError, PrivacyWarning, UtilityWarning, WeakGuaranteeWarning
from veilwood.privacy.certificate import (
    Assumption,
    PrivacyCertificate,
    ServerParticipation,
    Spend,
    assumptions_of,
    build_certificate,
)
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, guarantee_strength
from veilwood.privacy.steps import StepKind, counting_step
from veilwood.reporting import render_report
from veilwood_papers.not_private.hidden_id3 import ExactHiddenSplitTreeNotPrivate
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.errors import rejects
from veilwood_testing.parties import CAR, OWNERS, Threads

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

# A few words of every text, so that no text can be emptied or exchanged unnoticed.
WORDS = {
    "PUBLIC_SCHEMA": "is public knowledge: nothing in it was read from the data",
    "PUBLIC_NAMES": "names of the columns, and which of them are the target and the id, are public",
    "ROWS_FIT_SCHEMA": "otherwise the fit is refused, and a refusal can be seen",
    "UNIFORM_BITS": "random bits are uniform and secret",
    "UNIT_IS_COMPLETE": "what the same person has beyond that",
    "KEYED_TREE_ASSIGNMENT": "by a keyed hash under a secret key",
    "TREE_COLUMN": "in a column of the table",
    "PERIODS_KEPT": "keeps its period",
    "DECLARED_ROWS": "number of rows that was given (n_rows) is public",
    "COUNTED_ROWS": "counted without noise: it is public, as all neighbours have as many",
    "TIMING": "no outsider observes the running time of the fit",
    "IN_MEMORY": "the ledger was kept in memory only",
    "THIS_FIT_ALONE": "this fit alone",
    "NO_COLLUSION": "no two of the three servers collude, and each of them follows the protocol",
    "ONE_DEVIATES": "if one does not follow the protocol, the others notice it and stop",
    "DEALT_JOINTLY": "servers add parts of the noise that they know",
    "SAMPLED_JOINTLY": "its distance from the exact law is contained in delta",
    "OWNERS_COUNT": "owners count their own rows",
    "ONE_CORRUPT": "what it sees does not depend on the data",
    "ONE_HOT": "every row was checked, in shares, to hold one value for each feature",
    "ROWS_SEEN": "servers see how many rows each owner sent, padding included",
    "TRAFFIC": "watches the servers' network or times the training",
    "OWNERS_INTERSECT": "each owner knows which of its rows the others have",
    "ROWS_ALIGNED": "owners of columns know how many rows there are",
}

KEYED = "KEYED_TREE_ASSIGNMENT"
HERE = "PUBLIC_SCHEMA ROWS_FIT_SCHEMA UNIFORM_BITS UNIT_IS_COMPLETE TIMING"
SERVERS = "PUBLIC_SCHEMA ROWS_FIT_SCHEMA UNIFORM_BITS UNIT_IS_COMPLETE NO_COLLUSION"
HIDDEN = f"{SERVERS} SAMPLED_JOINTLY ONE_CORRUPT ONE_HOT ROWS_SEEN TRAFFIC"
COUNTED = f"{SERVERS} OWNERS_COUNT"

X = np.random.default_rng(0).random((60, 2))
Y = np.array(["no", "yes"] * 30)
CLASSES = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
NUMBERS = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=2)
SMALL: dict[str, Any] = {"n_estimators": 2, "max_depth": 2, "random_state": 0}


def fitted(name: str, **parameters: Any) -> PrivacyCertificate:
    """Fit an estimator to a small table, and return its certificate."""
    regression = name.endswith("Regressor")
    chosen = {"random_state": 0} if name.startswith("Private") else SMALL
    made = getattr(vw, name)(NUMBERS if regression else CLASSES, **chosen, **parameters)
    made.fit(X, X[:, 0] if regression else Y)
    if name == "MatrixForestPredictor":
        made.answer(X[:3], epsilon=1)
    return made.privacy_  # type: ignore[no-any-return]


def discovered() -> PrivacyCertificate:
    table = pd.DataFrame({"x": ["a", "b"] * 2000, "y": ["no", "yes"] * 2000})
    return vw.discover(table, epsilon=5.0, delta=1e-6).privacy


def in_a_file(folder: Path) -> PrivacyCertificate:
    return fitted("RandomTreesClassifier", ledger=vw.SQLiteLedger(folder / "ledger.db"))


def released_in_series(**changes: Any) -> PrivacyCertificate:
    """The certificate of the first release of a series."""
    forest = vw.RandomTreesClassifier(CLASSES, **SMALL, **changes)
    column = "tree" if changes["trees"] == "disjoint" else None
    series = vw.ReleaseSeries(forest, releases=2, period="month", ledger=MemoryLedger(), tree_column=column)
    table = pd.DataFrame(X, columns=["x0", "x1"]).assign(month=1, tree=0)
    certificate: PrivacyCertificate = series.release(table if column else table.drop(columns="tree"), Y).privacy_
    return certificate


LOCAL: dict[str, tuple[str, Callable[[], PrivacyCertificate]]] = {
    **{
        name: (f"{HERE} THIS_FIT_ALONE", partial(fitted, name))
        for name in estimators.__all__
        if not name.startswith(("Greedy", "Median"))  # each record in one of their trees
    },
    **{
        name: (f"{HERE} {KEYED} THIS_FIT_ALONE", partial(fitted, name, trees="disjoint"))
        for name in estimators.__all__
        if name.startswith(("Greedy", "Median"))
    },
    "MatrixForestPredictor": (f"{HERE} IN_MEMORY", partial(fitted, "MatrixForestPredictor")),  # answers add up
    "all records to every tree": (
        f"{HERE} THIS_FIT_ALONE", lambda: fitted("GreedyForestClassifier", trees="shared"),
    ),
    "with a delta": (f"{HERE} THIS_FIT_ALONE", lambda: fitted("RandomTreesClassifier", delta=1e-6)),
    "disjoint trees": (f"{HERE} {KEYED} THIS_FIT_ALONE", lambda: fitted("RandomTreesClassifier", trees="disjoint")),
    "a schema that is discovered": (
        "PUBLIC_NAMES UNIFORM_BITS UNIT_IS_COMPLETE TIMING THIS_FIT_ALONE", lambda: discovered(),
    ),
    "a series": (f"{HERE} PERIODS_KEPT IN_MEMORY", lambda: released_in_series(trees="shared")),
    "a series of disjoint trees": (
        f"{HERE} TREE_COLUMN PERIODS_KEPT IN_MEMORY", lambda: released_in_series(trees="disjoint"),
    ),
    "a ledger in memory": (f"{HERE} IN_MEMORY", lambda: fitted("RandomTreesClassifier", ledger=MemoryLedger())),
    "a number of rows that was given": (
        f"{HERE} DECLARED_ROWS THIS_FIT_ALONE", lambda: fitted("PrivateForestClassifier", n_rows=60),
    ),
    "rows that are replaced are counted": (
        f"{HERE} COUNTED_ROWS THIS_FIT_ALONE", lambda: fitted("PrivateForestClassifier", adjacency="replace-one"),
    ),
    "rows that may be dropped are not": (
        f"{HERE} THIS_FIT_ALONE".replace("ROWS_FIT_SCHEMA ", ""),
        lambda: fitted("PrivateForestClassifier", adjacency="replace-one", invalid="drop"),
    ),
    "rows that do not fit are dropped": (
        f"{HERE} THIS_FIT_ALONE".replace("ROWS_FIT_SCHEMA ", ""),
        lambda: fitted("RandomTreesClassifier", invalid="drop"),
    ),
}  # fmt: skip


def by_servers(protocol: str, **changes: Any) -> Callable[[], PrivacyCertificate]:
    """The certificate that servers and users write for a task."""
    task = Task("t", CAR.schema.to_dict(), "1", {"north": None, "south": None}, ("u",), protocol)
    return lambda: program_for_task(replace(task, **changes)).make_certificate("a ledger", 1)


def by_parties(law: Any, **parameters: Any) -> Callable[[], PrivacyCertificate]:
    """The certificate of an analyst who fits an estimator to owners and servers."""
    forest = vw.RandomTreesClassifier(CAR.schema, **SMALL, **parameters)
    return lambda: forest.fit(Threads(OWNERS, law)).privacy_  # type: ignore[no-any-return]


def public(law: str, **parameters: Any) -> dict[str, Any]:
    return {"settings": {"estimator": "RandomTreesClassifier", "noise_protocol": law, "parameters": SMALL | parameters}}


OWN_COLUMNS = {
    "bank": list(CAR.schema.feature_names)[:3],
    "clinic": [*list(CAR.schema.feature_names)[3:], CAR.schema.target.name],
}
SECURE: dict[str, tuple[str, Callable[[], PrivacyCertificate]]] = {
    "a hidden tree": (HIDDEN, by_servers("hidden-tree")),
    "a hidden forest": (f"{HIDDEN} {KEYED}", by_servers("hidden-tree", settings={"n_trees": 3})),
    "a hidden tree of columns": (f"{HIDDEN} ROWS_ALIGNED", by_servers("hidden-tree", owners=OWN_COLUMNS)),
    "private votes": (f"{HIDDEN} {KEYED}", by_servers("private-votes")),
    "private votes of columns": (f"{HIDDEN} {KEYED} ROWS_ALIGNED", by_servers("private-votes", owners=OWN_COLUMNS)),
    "private votes of one tree": (HIDDEN, by_servers("private-votes", settings={"n_trees": 1})),
    "a public forest, dealt": (f"{COUNTED} DEALT_JOINTLY", by_servers("public-forest", **public("dealt"))),
    "a public forest, sampled": (f"{COUNTED} SAMPLED_JOINTLY", by_servers("public-forest", **public("sampled"))),
    "PrivateForest of owners who stay": (f"{COUNTED} DEALT_JOINTLY SAMPLED_JOINTLY", by_servers("public-forest")),
    "a hidden tree of columns that were aligned": (
        f"{HIDDEN} ROWS_ALIGNED OWNERS_INTERSECT",
        by_servers("hidden-tree", owners=OWN_COLUMNS, settings={"alignment": "intersection"}),
    ),
    "a hidden tree of checked servers": (
        HIDDEN.replace("NO_COLLUSION", "ONE_DEVIATES"), by_servers("hidden-tree", settings={"servers": "checked"}),
    ),
    "PrivateForest on shares": (
        f"{HIDDEN} DEALT_JOINTLY", by_servers("forest-on-shares"),
    ),
    "a public disjoint forest": (
        f"{COUNTED} DEALT_JOINTLY {KEYED}", by_servers("public-forest", **public("dealt", trees="disjoint")),
    ),
    "an analyst, dealt": (f"{COUNTED} DEALT_JOINTLY THIS_FIT_ALONE", by_parties("dealt")),
    "an analyst, sampled": (f"{COUNTED} SAMPLED_JOINTLY THIS_FIT_ALONE", by_parties("sampled")),
    "an analyst with a ledger": (f"{COUNTED} DEALT_JOINTLY IN_MEMORY", by_parties("dealt", ledger=MemoryLedger())),
    "an analyst, disjoint": (f"{COUNTED} DEALT_JOINTLY {KEYED} THIS_FIT_ALONE", by_parties("dealt", trees="disjoint")),
    "exact hidden splits, not private": (
        f"{HIDDEN} THIS_FIT_ALONE", lambda: ExactHiddenSplitTreeNotPrivate(CAR.schema, max_depth=2).privacy_,
    ),
}  # fmt: skip


def assert_rests_on(statement: PrivacyCertificate, names: str) -> None:
    """Each of these texts, once, and no other."""
    left = list(statement.assumptions)
    for name in names.split():
        (found,) = (text for text in left if WORDS[name] in text)
        left.remove(found)
    assert left == []


@pytest.mark.parametrize("kind", LOCAL)
def test_what_a_certificate_of_this_machine_rests_on(kind: str) -> None:
    names, release = LOCAL[kind]
    assert_rests_on(release(), names)


@pytest.mark.parametrize("kind", SECURE)
def test_what_a_certificate_of_servers_rests_on(kind: str) -> None:
    names, release = SECURE[kind]
    assert_rests_on(release(), names)


def test_a_ledger_in_a_file_needs_no_words(tmp_path: Path) -> None:
    assert_rests_on(in_a_file(tmp_path), HERE)


def test_the_table_knows_every_assumption_and_every_estimator() -> None:
    expected = {name for names, _ in (*LOCAL.values(), *SECURE.values()) for name in names.split()}
    assert expected == set(WORDS) == {assumption.name for assumption in Assumption}
    assert set(estimators.__all__) <= set(LOCAL)


@pytest.mark.parametrize("dropped", Assumption)
def test_an_assumption_that_is_left_out_is_noticed(dropped: Assumption, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has power: without any one assumption, it fails for some kind of release."""

    def forgetful(*facts: Any) -> list[Assumption]:
        return [assumption for assumption in assumptions_of(*facts) if assumption is not dropped]

    monkeypatch.setattr("veilwood.privacy.certificate.assumptions_of", forgetful)
    kinds = LOCAL | SECURE
    names, release = next(kind for kind in kinds.values() if dropped.name in kind[0].split())
    with pytest.raises(ValueError, match="not enough values"):
        assert_rests_on(release(), names)


def test_a_server_that_leaves_out_an_assumption_is_refused() -> None:
    program = program_for_task(Task("t", CAR.schema.to_dict(), "1", {"north": None}, ("u",)))
    honest = [program.make_certificate(f"server {party}", 7).to_dict() for party in range(3)]
    assert program.verify_certificates(honest).ledger_entry == 7
    changes: list[dict[str, Any]] = [
        {"assumptions": honest[2]["assumptions"][1:]},
        {"assumptions": []},
        {"epsilon": 0.5},
        {"is_private": False, "reason": "none"},
        {"released": "nothing"},
    ]
    for change in changes:
        with rejects(PartyError, party="server 2", raised_in="Program.verify_certificates"):
            program.verify_certificates([*honest[:2], honest[2] | change])


# -- how it is shown -------------------------------------------------------------------------------------------------


PLAN = vw.RandomTreesClassifier(CLASSES, epsilon=1, **SMALL).plan()
PART = Loss.pure(Fraction(1, 49))


class Round(StepKind):
    ALONE = "round {}"
    CHOICE = "round {}: choice"
    SUMS = "round {}: sums of column {}"


def of_steps(*names: str) -> PrivacyCertificate:
    """The certificate of a release in equal steps, after a first one that is another."""
    steps = [counting_step(name, (3,), PART, PLAN.neighbours, l1=2, squared_l2=2) for name in names]
    first = counting_step("class counts", (2,), PART, PLAN.neighbours, l1=1, squared_l2=1)
    return build_certificate(replace(PLAN, steps=(first, *steps)), Spend("none", 1, PLAN.loss))


def test_equal_steps_are_told_once_to_people_and_all_to_programs() -> None:
    result = of_steps(*(Round.ALONE.at(number) for number in range(1, 49)))
    text = result.to_markdown()
    assert text.count("| 48 rounds, each | discrete Laplace, scale 98 | 2 | epsilon=0.0204082 |") == 1
    assert "| round" not in text
    assert "| class counts | discrete Laplace, scale 49 | 1 | epsilon=0.0204082 |" in text
    assert "49 noisy releases" in str(result)
    assert result.to_json().count('"name": "round ') == 48


def test_steps_of_rounds_are_told_once_for_each_kind() -> None:
    result = of_steps(
        *(name for number in range(1, 13) for name in (Round.CHOICE.at(number), Round.SUMS.at(number, 3)))
    )
    text = result.to_markdown()
    assert text.count("| 12 rounds: choice, each | discrete Laplace, scale 98 |") == 1
    assert text.count("| 12 rounds: sums of column, each | discrete Laplace, scale 98 |") == 1
    assert "| round" not in text


def test_steps_of_other_names_are_told_from_the_first_to_the_last() -> None:
    text = of_steps("left side", "right side", "middle").to_markdown()
    assert "| left side to middle, 3 steps, each |" in text


def test_a_plan_that_adapted_shows_what_was_signed_and_what_was_chosen(tmp_path: Path) -> None:
    forest = vw.PrivateForestClassifier(CAR.schema, epsilon=2, random_state=0)
    signed = forest.plan()
    result = forest.fit(CAR.X, CAR.y).privacy_
    assert result.plan_hash == signed.fingerprint() == forest.plan_.opened_as
    assert result.chosen["plan_hash"] == forest.plan_.fingerprint() != result.plan_hash
    assert result.chosen["choices"] == forest.plan_.choices
    assert result.chosen["layout"]["rows_planned"] == forest.plan_.layout.rows_planned
    text = result.to_markdown()
    assert "## Adaptive decisions" in text
    assert result.plan_hash in text
    assert result.chosen["plan_hash"] in text
    assert PrivacyCertificate.from_dict(result.to_dict()) == result
    vw.save(forest, tmp_path / "forest.veilwood")
    assert vw.load(tmp_path / "forest.veilwood").privacy_ == result
    assert fitted("RandomTreesClassifier").chosen == {}


@pytest.mark.parametrize(
    "chosen",
    [{"choices": {}}, {"choices": [], "layout": {}, "plan_hash": ""}, {"choices": {}, "layout": 3, "plan_hash": ""},
     {"choices": {}, "layout": {"trees": -1}, "plan_hash": ""}, {"choices": {}, "layout": {}, "plan_hash": None}],
)  # fmt: skip
def test_choices_that_are_none_are_refused(chosen: Any) -> None:
    with pytest.raises(ModelFileError):
        PrivacyCertificate.from_dict(fitted("RandomTreesClassifier").to_dict() | {"chosen": chosen})


def test_the_unit_is_named_as_it_is() -> None:
    plan = replace(vw.RandomTreesClassifier(CLASSES, privacy_unit={"id": "{unit}", "at_most": 2}, **SMALL).plan())
    result = build_certificate(plan, Spend("none", 1, plan.loss), ServerParticipation("dealt", "counts"))
    assert sum("all rows of one {unit} (counted as at most 2)" in text for text in result.assumptions) == 1


@pytest.mark.parametrize(
    ("epsilon", "grade"), [(1, "private"), (5, "weak"), (10, "nearly none"), (1000, "nearly none")]
)
def test_a_weak_guarantee_is_called_weak_wherever_it_is_shown(epsilon: int, grade: str) -> None:
    forest = vw.RandomTreesClassifier(CLASSES, epsilon=epsilon, **SMALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyWarning)
        warnings.simplefilter("ignore", UtilityWarning)
        certificate = forest.fit(X, Y).privacy_
    strength = certificate.strength
    assert strength == guarantee_strength(epsilon)
    assert strength.grade == grade
    assert [warning.category for warning in caught] == [WeakGuaranteeWarning] * (grade != "private")
    assert [str(warning.message) for warning in caught] == [strength.verdict] * (grade != "private")
    assert all(warning.filename == __file__ for warning in caught)  # the user's line
    page, card = certificate.to_markdown(), certificate._repr_html_()
    for text in (page, card, render_report(forest)):
        assert strength.label in text
    for text in (page, render_report(forest)):
        assert strength.factor in text
        assert strength.verdict[1:] in text
    assert str(certificate).startswith(f"{strength.label}: ")
