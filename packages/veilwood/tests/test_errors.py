# SPDX-License-Identifier: Apache-2.0
"""Fields and families of errors, and one-line representations of values."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from veilwood import errors
from veilwood.errors import BudgetExceededError, OutOfSchemaError, ParameterError, PartyError, VeilwoodError, short_repr

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


def test_a_parameter_is_named_with_its_value_and_the_next_step() -> None:
    error = ParameterError("epsilon", -1, "is not positive", "give 1.0")
    assert str(error) == "epsilon=-1 is not positive. Hint: give 1.0."
    assert (error.name, error.value) == ("epsilon", -1)
    assert str(ParameterError("depth", 0, "is too small")) == "depth=0 is too small."


def test_a_long_value_is_shown_in_short() -> None:
    assert len(str(ParameterError("schema", "x" * 10_000, "is unknown"))) < 300


def test_rows_that_do_not_fit_are_told_by_column_and_kind() -> None:
    error = OutOfSchemaError("no", column="age", problems=(("age", "text"), ("ward", "unknown category")))
    assert error.in_short() == "'age': text, 'ward': unknown category"
    assert OutOfSchemaError("no", column="age").in_short() == "'age': does not fit the schema"
    assert OutOfSchemaError("no").in_short() == "the table: does not fit the schema"


def test_what_was_asked_and_who_failed_is_kept() -> None:
    refused = BudgetExceededError("too much", requested="epsilon=2", remaining="epsilon=1")
    assert (refused.requested, refused.remaining) == ("epsilon=2", "epsilon=1")
    assert PartyError("lost", party="server 1").party == "server 1"


def test_every_error_is_a_veilwood_error() -> None:
    """A caller catches one class; ``except ValueError`` catches them too."""
    found = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert len(found) > 10
    kinds = [kind for kind in found.values() if not issubclass(kind, Warning)]
    assert all(issubclass(kind, VeilwoodError) and issubclass(kind, ValueError) for kind in kinds)


def test_any_value_is_shown_in_a_short_line() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**5000, deep, Silent(), "x" * 10**6, "a\nb\r\tc", "\ud800", np.zeros((99, 99)), None):
        text = short_repr(value)
        assert len(text) < 150
        assert text.isprintable()
