# SPDX-License-Identifier: Apache-2.0
"""What a ledger takes at its word: nothing. Edited totals, releases without a guarantee, older files, crashes."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import BudgetExceededError, LedgerError, NotPrivateError
from veilwood.privacy import entropy
from veilwood.privacy import hash_chain as chain
from veilwood.privacy.ledger import RELEASE, Ledger
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_testing import FILES
from veilwood_testing.ledger_trust_cases import ROW, pure, spend

FIXTURES = FILES
SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X = np.linspace(0, 1, 80).reshape(40, 2)
Y = np.where(X[:, 0] > 0.5, "yes", "no")


def forest(**parameters: Any) -> vw.RandomTreesClassifier:
    usual: dict[str, Any] = {"schema": SCHEMA, "n_estimators": 2, "max_depth": 2, "random_state": 0}
    return vw.RandomTreesClassifier(**usual | parameters)


# -- a total is never taken from a row that could have been edited --------------------------------------------


def edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()


EDITS = {
    "total": 'UPDATE balance SET body = replace(body, \'"epsilon":"1/2"\', \'"epsilon":"0"\')',
    "budget of the total": 'UPDATE balance SET body = replace(body, \'"epsilon":"1"\', \'"epsilon":"9"\')',
    "budget": "UPDATE events SET body = replace(body, '\"1\"', '\"9\"') WHERE number = 1",
    "last event": "DELETE FROM events WHERE number = 3",
    "last entry": "DELETE FROM events WHERE number > 1",
    "loss": "UPDATE events SET body = replace(body, '\"1/2\"', '\"0\"') WHERE number = 2",
    "cancelled": "UPDATE events SET body = replace(body, 'committed', 'cancelled') WHERE number = 3",
    "no total": "DELETE FROM balance",
}
USES: dict[str, Callable[[SQLiteLedger], object]] = {
    "reserve": lambda ledger: spend(ledger, pure(0.9)),
    "small reserve": lambda ledger: spend(ledger, pure(0.1)),
    "spent": lambda ledger: ledger.spent,
    "remaining": lambda ledger: ledger.remaining,
    "can_afford": lambda ledger: ledger.can_afford(pure(0.1)),
    "verify": lambda ledger: ledger.verify(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", EDITS)
def test_what_verify_rejects_is_not_relied_on(name: str, use: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    spend(SQLiteLedger(path, 1), pure(0.5)).commit()
    edit(path, EDITS[name])
    with pytest.raises(LedgerError, match=r"x\.db (was altered|is damaged)"):
        USES[use](SQLiteLedger(path))


@pytest.mark.parametrize("name", EDITS)
def test_an_open_ledger_is_not_fooled_by_edits_either(name: str, tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    spend(ledger, pure(0.5)).commit()
    assert ledger.spent == pure(0.5)
    edit(ledger.path, EDITS[name])
    with pytest.raises(LedgerError):
        spend(ledger, pure(0.9))


def test_a_spend_that_could_not_be_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = SQLiteLedger(tmp_path / "x.db", 1)
    with monkeypatch.context() as patch:
        patch.setattr(chain, "store_balance", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk full")))
        with pytest.raises(LedgerError, match="disk full"):
            spend(ledger, pure(1))
    assert ledger.spent == Loss.zero()
    spend(ledger, pure(1)).commit()
    ledger.verify()


# -- releases without a guarantee ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
@pytest.mark.parametrize("cause", ["inferred", "seeded", "no noise"])
def test_a_budget_refuses_what_is_not_private(cause: str) -> None:
    reason = {"inferred": "the schema was inferred", "seeded": "a seeded test stream", "no noise": "no noise was added"}
    ledger = MemoryLedger(10)

    def fit(ledger: Ledger) -> None:
        if cause == "seeded":
            with entropy.seeded_for_tests(1):
                forest(ledger=ledger).fit(X, Y)
        else:
            more = {"schema": "infer"} if cause == "inferred" else {"epsilon": math.inf}
            forest(ledger=ledger, **more).fit(X, Y)

    with pytest.raises(NotPrivateError, match=rf"NOT PRIVATE: .*{reason[cause]}.*Hint: .*ledger without a budget"):
        fit(ledger)
    assert ledger.spent == Loss.zero()
    assert ledger.entries() == []
    free = MemoryLedger()
    forest(ledger=free).fit(X, Y)
    assert free.spent == pure(1)
    fit(free)
    assert free.spent == Loss.unbounded()
    assert free.unbounded_by is not None
    assert free.unbounded_by.id == 4
    assert f"The total is unbounded because of entry 4: {free.unbounded_by.not_private}" in str(free)
    free.verify()


def test_a_cancelled_release_without_a_guarantee_bounds_the_total_again() -> None:
    ledger = MemoryLedger()
    spend(ledger, pure(1))
    spend(ledger, pure(1), not_private="seeded").cancel()
    assert (ledger.spent, ledger.unbounded_by) == (pure(1), None)


# -- whom it protects, and of which table an entry is -----------------------------------------------------------------


def test_a_ledger_knows_whom_it_protects(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    ledger = SQLiteLedger(path, 1, population="patients of clinic X")
    assert (
        ledger.population
        == SQLiteLedger(path).population
        == SQLiteLedger(path, population="patients of clinic X").population
    )
    assert str(ledger).startswith("ledger x.db of patients of clinic X: spent epsilon=0, budget epsilon=1")
    with pytest.raises(LedgerError, match="is a ledger of patients of clinic X, not of pupils"):
        SQLiteLedger(path, population="pupils")
    assert MemoryLedger(1, population="pupils").population == "pupils"
    for wrong in ("", "  ", "x" * 2000, 3):
        with pytest.raises(LedgerError, match="population="):
            SQLiteLedger(tmp_path / "y.db", population=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "y.db").exists()


def test_an_edit_of_whom_it_protects_is_found(tmp_path: Path) -> None:
    SQLiteLedger(tmp_path / "x.db", 1, population="patients of clinic X")
    edit(tmp_path / "x.db", "UPDATE events SET body = replace(body, 'clinic X', 'clinic Y')")
    with pytest.raises(LedgerError, match="altered"):
        _ = SQLiteLedger(tmp_path / "x.db").population


def test_entries_record_table_and_schema_and_are_shown_by_table(tmp_path: Path) -> None:
    ledger = MemoryLedger(9)
    header = [*SCHEMA.feature_names, SCHEMA.target.name]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join([",".join(header), *(f"{a},{b},{label}" for (a, b), label in zip(X, Y, strict=True))]))
    forest(ledger=ledger).fit(str(table))
    forest(ledger=ledger).fit(X, Y)
    wider = vw.Schema.numeric((0, 2), classes=["no", "yes"], n_features=2)
    forest(schema=wider, ledger=ledger).fit(str(table))
    entries = ledger.entries()
    assert [entry.table for entry in entries] == [str(table), "numpy ndarray in memory", str(table)]
    assert [entry.schema for entry in entries] == [SCHEMA.fingerprint(), SCHEMA.fingerprint(), wider.fingerprint()]
    shown = str(ledger)
    assert f"{table}: epsilon=2" in shown
    assert "numpy ndarray in memory: epsilon=1" in shown
    assert "same people, so their losses add up" in shown
    assert ledger.spent.epsilon == 3


# -- what a crash left -------------------------------------------------------------------------------------------------


def test_a_custodian_settles_what_a_crash_left_as_spent() -> None:
    ledger = MemoryLedger(1)
    left = spend(ledger, pure(0.5))
    assert "reserved: charged before noise was drawn" in str(ledger)
    ledger.resolve(left.id, "power failure")
    (entry,) = ledger.entries()
    assert (entry.state, entry.resolution, ledger.spent) == ("resolved", "power failure", pure(0.5))
    assert "resolved by a custodian: power failure" in str(ledger)
    assert "reserved: charged" not in str(ledger)
    head = ledger.verify()
    left.commit()  # whoever was late finds it settled as they would have
    assert ledger.verify() == head
    with pytest.raises(LedgerError, match="is resolved: only a reserved one"):
        left.cancel()
    with pytest.raises(LedgerError, match="is resolved: only a reserved one"):
        ledger.resolve(left.id, "again")
    done = spend(ledger, pure(0.1))
    done.commit()
    for wrong in (done.id, 1, 99):
        with pytest.raises(LedgerError, match="only a reserved one can be resolved"):
            ledger.resolve(wrong, "reason")
    for reason in ("", " ", None):
        with pytest.raises(LedgerError, match="reason="):
            ledger.resolve(left.id, reason)  # type: ignore[arg-type]


# -- files of version 0.1.0 --------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(FIXTURES / "ledger-0.1.0.db", tmp_path / "old.db"))


def test_a_ledger_of_an_earlier_version_goes_on(old: Path) -> None:
    ledger = SQLiteLedger(old)
    assert (ledger.budget, ledger.population) == (Loss(Fraction(3)), None)
    assert [(entry.state, entry.table, entry.schema, entry.purpose) for entry in ledger.entries()] == [
        ("committed", "", "", RELEASE),
        ("reserved", "", "", RELEASE),
    ]
    assert ledger.spent.epsilon == Fraction(3, 4)
    assert len(ledger.verify()) == 64
    ledger = SQLiteLedger(old, 3, population="owners of cars")
    ledger.resolve(ledger.entries()[1].id, "the machine was switched off")
    spend(ledger, pure(2.25), table="cars.csv", schema="ab").commit()
    with pytest.raises(BudgetExceededError):
        spend(ledger, pure(0.1))
    again = SQLiteLedger(old)
    assert again.population == "owners of cars"
    assert again.spent.epsilon == 3
    assert [entry.table for entry in again.entries()] == ["", "", "cars.csv"]
    assert "table not recorded: epsilon=0.75" in str(again)
    again.verify()


def test_an_earlier_ledger_that_counted_what_is_not_private_spends_no_more(tmp_path: Path) -> None:
    path = Path(shutil.copy(FIXTURES / "ledger-0.1.0-not-private.db", tmp_path / "old.db"))
    ledger = SQLiteLedger(path)
    ledger.verify()  # nobody altered it
    assert ledger.spent == Loss.unbounded()
    assert ledger.remaining == Loss.zero()
    with pytest.raises(BudgetExceededError, match=r"Entry 4 is NOT PRIVATE.*new ledger"):
        spend(ledger, pure(0.1))
    assert "because of entry 4" in str(ledger)


def test_an_edited_file_of_an_earlier_version_is_found(old: Path) -> None:
    edit(old, 'UPDATE balance SET body = replace(body, \'"epsilon":"3/4"\', \'"epsilon":"0"\')')
    with pytest.raises(LedgerError, match="altered"):
        spend(SQLiteLedger(old), pure(0.1))


# -- keys and texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [({"what": "x", "key": "a] [b"}, "b"), ({"what": "x [b]"}, "b"), ({"what": "x [b]", "key": "a"}, "b")],
)
def test_a_spend_is_not_taken_for_one_of_another_key(first: dict[str, str], second: str) -> None:
    """Keys stood at the end of the text: one that ended like another was not charged, and a second release was free."""
    ledger = MemoryLedger(epsilon=1)
    facts = {"neighbours": ROW, "plan": "1f3a"}
    ledger.reserve(pure("0.5"), **first, **facts).commit()  # type: ignore[arg-type]
    assert ledger.find(second) is None
    assert ledger.reserve(pure("0.5"), what="y", key=second, **facts).is_new  # type: ignore[arg-type]
    assert ledger.spent.epsilon == 1
    assert not ledger.reserve(pure("0.5"), what="y", key=second, **facts).is_new  # type: ignore[arg-type]
    assert ledger.find("") is None


@pytest.mark.parametrize("name", ["what", "table", "plan", "schema"])
def test_half_of_a_pair_of_code_units_does_not_spoil_the_ledger(name: str, tmp_path: Path) -> None:
    """A schema of such a name had made the ledger unreadable, for everybody and for good."""
    ledger = SQLiteLedger(tmp_path / "spends.db", epsilon=1)
    facts = {"what": "leaf counts", "neighbours": ROW, "plan": "1f3a", name: "x\ud800"}
    ledger.reserve(pure("0.5"), **facts).commit()  # type: ignore[arg-type]
    spend(ledger, pure("0.25")).cancel("\udc80")
    assert SQLiteLedger(tmp_path / "spends.db", population="people \ud83d").spent == pure("0.5")
    ledger.verify()
    with pytest.raises(LedgerError, match="key"):  # nothing is put in its place: two keys could become one
        spend(ledger, pure("0.25"), key="\ud800")
