# SPDX-License-Identifier: Apache-2.0
"""Published tables are read as they were printed."""

from __future__ import annotations

import math

import pytest

from veilwood_papers.exhibit import Cell, mrf_values, parse_number, read_published


def test_missing_numbers_are_not_zero() -> None:
    assert parse_number("0.25") == 0.25
    assert math.isnan(parse_number(""))


def test_a_table_that_nobody_copied_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        read_published("no_such_table")


def test_standard_errors_come_from_deviations_and_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"data": "car", "method": "ours", "eps": "1.0", "acc_mean": "0.9", "acc_std": "0.2", "n_trials": "16"}
    other = line | {"method": "not shown"}
    monkeypatch.setattr("veilwood_papers.exhibit.read_published", lambda name: [line, other])
    found = mrf_values("any", "eps", {"ours": "M-RF"}, lambda row: row["data"])
    (cell,) = found
    assert cell == Cell("car", "M-RF", "1")
    assert (found[cell].mean, found[cell].error, found[cell].runs) == (0.9, 0.05, 16)
