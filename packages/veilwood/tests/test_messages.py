# SPDX-License-Identifier: Apache-2.0
"""Messages of errors: every class raised once, by the library itself. One line, a hint, no value of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import errors
from veilwood.cli.fit import EstimatorOptions
from veilwood.privacy import ledger_stores
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.safe_io import parse_fraction, write_file

PRIVATE = "Sq7-private-value"
"""A value of a row. No message may contain it."""
SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X, Y = np.linspace(0, 1, 40).reshape(20, 2), np.array(["no", "yes"] * 10)


def forest(**parameters: object) -> vw.RandomTreesClassifier:
    settings: dict[str, object] = {"schema": SCHEMA, "n_estimators": 2, "max_depth": 2, "random_state": 0}
    return vw.RandomTreesClassifier(**settings | parameters)  # type: ignore[arg-type]


def out_of_schema(_: Path) -> None:
    rows = pd.DataFrame(X, columns=list(SCHEMA.feature_names)).astype(object)
    rows.iloc[3, 0] = PRIVATE
    forest(ledger=vw.MemoryLedger(1)).fit(rows, Y)


def exceed_budget(_: Path) -> None:
    forest(epsilon=2, ledger=vw.MemoryLedger(1)).fit(X, Y)


def charge_without_guarantee(_: Path) -> None:
    loss = Loss.pure(exact_fraction(1))
    vw.MemoryLedger(1).reserve(loss, what="x", neighbours="one row", plan="1f3a", not_private="no noise was added")


def load_damaged_model(folder: Path) -> None:
    vw.save(forest().fit(X, Y), folder / "model.veilwood")
    content = bytearray((folder / "model.veilwood").read_bytes())
    content[-40] ^= 1
    (folder / "model.veilwood").write_bytes(content)
    vw.load(folder / "model.veilwood")


def load_unsigned_model(folder: Path) -> None:
    vw.save(forest().fit(X, Y), folder / "model.veilwood")
    from veilwood.privacy.signature import generate_key_pair

    vw.load(folder / "model.veilwood", signed_by=generate_key_pair(folder / "clinic.key"))


def lack_package(_: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "psycopg", None)
        ledger_stores.PostgresLedger("postgresql://me:hush@host/claims#visits")


def plan_of_another_fit(_: Path) -> None:
    forest().fit(X, Y, plan=forest(epsilon=3).plan())


RAISED: dict[type[errors.VeilwoodError], Callable[[Path], object]] = {
    errors.ParameterError: lambda _: forest(voting="loud").fit(X, Y),
    errors.NotFoundError: lambda _: EstimatorOptions("random-tree").make_estimator(SCHEMA),
    errors.UseError: lambda _: vw.report(object(), "page.html"),
    errors.SetupError: lack_package,
    errors.UnreadableError: lambda _: parse_fraction("1e999999999", "epsilon"),
    errors.PlanError: plan_of_another_fit,
    errors.SchemaError: lambda _: vw.Column("age", "numeric", lower=3, upper=1),
    errors.UndeclaredSchemaError: lambda _: vw.RandomTreesClassifier().fit(X, Y),
    errors.OutOfSchemaError: out_of_schema,
    errors.LedgerError: lambda folder: vw.SQLiteLedger(folder),
    errors.BudgetExceededError: exceed_budget,
    errors.NotPrivateError: charge_without_guarantee,
    errors.DomainTooLargeError: lambda _: forest(n_estimators=10**6, max_depth=20).fit(X, Y),
    errors.FileError: lambda folder: write_file(folder / "nowhere" / "x", b""),
    errors.ModelFileError: load_damaged_model,
    errors.SignatureError: load_unsigned_model,
}
ELSEWHERE = {errors.VeilwoodError, errors.MechanismError, errors.PartyError}
"""The base is not raised; mechanisms and parties are tested with privacy and secure training."""


def test_every_class_is_raised() -> None:
    classes = {
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.VeilwoodError)
    }
    assert classes == set(RAISED) | ELSEWHERE


@pytest.mark.parametrize("error", RAISED, ids=lambda error: error.__name__)
def test_a_message_is_one_line_with_a_hint_and_no_private_value(
    error: type[errors.VeilwoodError], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        RAISED[error](tmp_path)
    assert type(caught.value) is error
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert "Hint: " in message
    assert message.endswith((".", "?", "'"))
    assert PRIVATE not in message
    assert "hush" not in message


def test_exit_codes_follow_from_classes() -> None:
    kinds: set[Any] = {*RAISED, *ELSEWHERE}
    codes = {kind: kind.exit_code for kind in kinds}
    ledger = {errors.LedgerError, errors.FileError, errors.ModelFileError, errors.SignatureError}
    budget = {errors.BudgetExceededError, errors.NotPrivateError}
    assert {each for each, code in codes.items() if code == 4} == ledger
    assert {each for each, code in codes.items() if code == 3} == budget
    assert {each for each, code in codes.items() if code == 2} == set(codes) - ledger - budget


def test_a_resource_that_is_not_found_is_named() -> None:
    error = errors.NotFoundError("trained model", "m7", where="data set visits")
    assert (error.kind, error.name) == ("trained model", "m7")
    assert str(error) == (
        "there is no trained model 'm7' in data set visits. Hint: choose one from the list of trained models."
    )


def test_the_tree_of_errors_at_the_head_of_the_module_is_complete() -> None:
    head = inspect.getdoc(errors) or ""
    defined = [name for name, each in vars(errors).items() if getattr(each, "__module__", "") == errors.__name__]
    assert [name for name in defined if name[0].isupper() and name not in head] == []
