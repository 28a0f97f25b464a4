# SPDX-License-Identifier: Apache-2.0
"""Data sets of the papers: three are built in, the others are in a folder or in the cache of ``fetch_table``.

A data set is ``NAME.csv.gz``, with a header and one line per row, and ``NAME.json``, its public schema. The facts of
all data sets (schema, origin, licence, hash of the rows) come with the package; the rows do not.
"""

from __future__ import annotations

import copy
import csv
import gzip
import hashlib
import importlib.resources
import io
import json
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from veilwood import datasets
from veilwood.data.schema import Schema
from veilwood.data.tables import read_table
from veilwood.errors import FileError, SetupError

EMBEDDED = {"car": datasets.car, "balance-scale": datasets.balance_scale, "iris": datasets.iris}


class PublicTable(NamedTuple):
    """Rows with their facts, the dictionary behind the schema. Exhibits may change its columns."""

    facts: dict[str, Any]
    X: pd.DataFrame
    y: pd.Series[Any]

    @property
    def schema(self) -> Schema:
        """Schema built from the facts."""
        return Schema.from_dict(self.facts)


def cache_folder() -> Path:
    """Return the folder of fetched data sets: ``VEILWOOD_DATA``, or a folder in the user's cache."""
    named = os.environ.get("VEILWOOD_DATA")
    caches = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(caches) if caches else Path.home() / ".cache") / "veilwood" / "papers"


@lru_cache
def known_tables() -> dict[str, dict[str, Any]]:
    """Return the facts of all data sets, by name.

    >>> known_tables()["iris"]["target"]
    'class'
    """
    folder = importlib.resources.files("veilwood_papers") / "tables"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8")) for entry in files}


class PublicTables:
    """Lookup of data sets: in the given folders first, then among the built-in ones.

    >>> PublicTables().has_table("car"), len(PublicTables().load_table("car").X)
    (True, 1728)
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = tuple(folders)

    def has_table(self, name: str) -> bool:
        """Return True if a data set is available."""
        return name in EMBEDDED or self._find_path(name) is not None

    def load_table(self, name: str) -> PublicTable:
        """Return a data set with its own copy of the facts. Raise SetupError if it is missing."""
        path = self._find_path(name)
        if path is None and name not in EMBEDDED:
            raise SetupError(f"the data set {name} is missing. Hint: {describe_source(name)}.")
        return _read_table(path, name)._replace(facts=copy.deepcopy(_read_facts(path, name)))

    def _find_path(self, name: str) -> Path | None:
        places = (folder / f"{name}.csv.gz" for folder in self.folders)
        return next((path for path in places if path.exists()), None)


def describe_source(name: str) -> str:
    """Return a short instruction for obtaining a missing data set."""
    from veilwood_papers.convert import SOURCES

    if name in SOURCES:
        return f"run veilwood papers fetch {name}"
    return f"pass --data DIR with {name}.csv.gz and {name}.json; it cannot be fetched"


def _read_facts(path: Path | None, name: str) -> dict[str, Any]:
    schema_path = None if path is None else path.with_name(f"{name}.json")
    if schema_path is None or not schema_path.exists():
        return known_tables()[name]
    facts: dict[str, Any] = json.loads(schema_path.read_text(encoding="utf-8"))
    return facts


@lru_cache(maxsize=6)
def _read_table(path: Path | None, name: str) -> PublicTable:
    facts = _read_facts(path, name)
    # The rows are public, so bounds taken from them are too. Without these markers the schema is no longer a draft.
    columns = [{key: value for key, value in column.items() if key != "bounds"} for column in facts["columns"]]
    facts = facts | {"columns": columns}
    if path is None:
        data = EMBEDDED[name]()
        return PublicTable(facts, data.X, data.y)
    return PublicTable(facts, *read_table(path, Schema.from_dict(facts)))


# -- the canonical hash ----------------------------------------------------------------------------------------------


def hash_of_rows(header: Sequence[str], rows: Iterable[Sequence[str]], facts: dict[str, Any]) -> str:
    """Return a hash of a table that is independent of the order of rows and the format of numbers.

    >>> facts = {"columns": [{"name": "x", "kind": "numeric"}]}
    >>> hash_of_rows(["x"], [["1.0"], ["2"]], facts) == hash_of_rows(["x"], [["2.00"], ["1"]], facts)
    True
    """
    numeric = {column["name"] for column in facts["columns"] if column["kind"] == "numeric"}
    are_numbers = [name in numeric for name in header]
    lines = sorted(
        "\x1f".join(repr(float(c)) if number and c != "" else c for c, number in zip(row, are_numbers, strict=True))
        for row in rows
    )
    return hashlib.sha256("\n".join(["\x1f".join(header), *lines]).encode()).hexdigest()


def hash_of_file(path: Path, facts: dict[str, Any]) -> str:
    """Return the canonical hash of a ``NAME.csv.gz``."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            return hash_of_rows(next(lines), lines, facts)
    except (OSError, EOFError, StopIteration, ValueError) as error:
        raise FileError(f"{path} cannot be read as a table: {error}. Hint: delete it and fetch it again.") from None


def packed_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """Return the bytes of a ``NAME.csv.gz``, identical for identical rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), 9, mtime=0)
