# SPDX-License-Identifier: Apache-2.0
"""Packages beside the core: found by name, loaded when asked for, and named in the error if they are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest

import veilwood as vw
from veilwood import siblings
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import SetupError

SCHEMA = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=1)


def object_of(package: str, name: str = "DataFrame") -> Any:
    """An object of a library that need not be installed."""
    return type(name, (), {"__module__": f"{package}.core", "columns": ["x"]})()


ROWS: dict[str, Any] = {
    "duckdb": ("duckdb:///claims.db#visits", "sql"),
    "postgres": ("postgresql://host/db#visits", "sql"),
    "sqlite": ("sqlite:///claims.db#visits", "sql"),
    "dask": (object_of("dask"), "cluster"),
    "pyspark": (object_of("pyspark"), "spark"),
    "ray": (object_of("ray"), "ray"),
    "deltalake": (object_of("deltalake", "DeltaTable"), "delta"),
    "pyiceberg": (object_of("pyiceberg", "Table"), "iceberg"),
}


class WithoutEngines:
    """An environment without the package."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "veilwood_engines":
            raise ModuleNotFoundError(name, name=name)


def test_every_module_in_the_tables_exists() -> None:
    known = [value for value in vars(siblings).values() if isinstance(value, siblings.Sibling)]
    for rows, _ in ROWS.values():
        found = siblings.find_database(rows) or siblings.find_cluster(rows) or siblings.find_lake(rows)
        assert found is not None
        known.append(found)
    assert all(find_spec(sibling.module) for sibling in known)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_a_missing_package_name_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, extra = ROWS[kind]
    for name in [name for name in sys.modules if name.split(".")[0] == "veilwood_engines"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutEngines(), *sys.meta_path])
    with pytest.raises(SetupError, match=rf"\[{extra}\]"):
        open_rows(rows, None, Encoding(SCHEMA, "bins"))


def test_other_rows_are_of_no_sibling() -> None:
    for rows in ("visits.csv", "s3://bucket/visits.csv", [[1.0]], object_of("ibis")):
        assert siblings.find_database(rows) is siblings.find_cluster(rows) is siblings.find_lake(rows) is None


def test_an_error_inside_a_sibling_is_not_taken_for_its_absence() -> None:
    with pytest.raises(ModuleNotFoundError):
        siblings.Sibling("veilwood_engines.nowhere", "sql").load()
