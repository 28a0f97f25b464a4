# SPDX-License-Identifier: Apache-2.0
"""Tables of Delta Lake and Iceberg: folders in which deleted rows still lie, so that their own log says what is live.

A folder of them is never read file by file. One version is read, in every pass the same; other tables that keep a log
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from veilwood.data.relations import Relation, of_delta, of_iceberg
from veilwood.errors import OutOfSchemaError, SetupError

__all__ = ["lake_of", "open_lake", "refuse_inside_lakes"]

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"
_VERSION: Final = re.compile(r"v?(\d+)(-.*)?\.metadata\.json(\.gz)?|v?(\d+)(-.*)?\.gz\.metadata\.json")


def lake_of(names: Iterable[str]) -> str | None:
    """Tell by what lies in a folder, as paths relative to it, whose table it is.

    >>> lake_of(["part-0.parquet", "_delta_log/0.json"]), lake_of(["metadata/v1.metadata.json"]), lake_of(["a.csv"])
    ('delta', 'iceberg', None)
    """
    parts = [name.split("/") for name in names]
    if any(part[0] == _DELTA for part in parts):
        return "delta"
    if any(part[0] == _HUDI for part in parts):
        return "hudi"
    if any(len(part) == 2 and part[0] == _ICEBERG and _VERSION.fullmatch(part[1]) for part in parts):
        return "iceberg"
    return None


def _inside(folder: Path) -> str | None:
    if (folder / _DELTA).is_dir() or (folder / _HUDI).is_dir():
        return "delta" if (folder / _DELTA).is_dir() else "hudi"
    found = (folder / _ICEBERG).glob("*.metadata.json")
    return lake_of(f"{_ICEBERG}/{path.name}" for path in found)


def refuse_inside_lakes(paths: Iterable[Path]) -> None:
    """Refuse files that are parts of such a table: which of their rows are live, only its log says."""
    known: dict[Path, str | None] = {}
    for path in paths:
        for folder in path.absolute().parents:
            if folder not in known:
                known[folder] = _inside(folder)
            if known[folder] is not None:
                raise OutOfSchemaError(
                    f"{str(path)!r} belongs to a table of {_TITLES[known[folder] or '']}, of whose files some rows may "
                    f"be deleted. Hint: pass the folder of the table, {str(folder)!r}."
                )


_TITLES: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}


def open_lake(folder: str) -> Relation | None:
    """Open a folder on this computer if it is a table of Delta Lake or Iceberg; None if it is an ordinary one."""
    kind = _inside(Path(folder))
    metadata = (path.name for path in (Path(folder) / _ICEBERG).glob("*"))
    return None if kind is None else open_kind(kind, folder, metadata)


def open_kind(kind: str, address: str, metadata: Iterable[str]) -> Relation:
    """Open a table by what it was found to be; ``metadata`` are the names in Iceberg's folder of them."""
    if kind == "hudi":
        raise OutOfSchemaError(
            f"{address!r} is a table of Hudi, which is not read. Hint: pass a Spark frame, or write Parquet."
        )
    return _open_delta(address) if kind == "delta" else _open_iceberg(address, metadata)


def _open_delta(address: str) -> Relation:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise _missing("Delta Lake", "delta") from None
    return of_delta(DeltaTable(address))


def _open_iceberg(address: str, metadata: Iterable[str]) -> Relation:
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise _missing("Iceberg", "iceberg") from None
    return of_iceberg(StaticTable.from_metadata(f"{address.rstrip('/')}/{_ICEBERG}/{_newest(metadata)}"))


def _newest(names: Iterable[str]) -> str:
    """Find the newest metadata by its number; two of the same number are the business of a catalogue."""
    numbered = [(int(found[1] or found[4]), name) for name in names if (found := _VERSION.fullmatch(name))]
    highest = max(number for number, _ in numbered)
    newest = [name for number, name in numbered if number == highest]
    if len(newest) > 1:
        raise OutOfSchemaError(
            "which metadata of this table of Iceberg is the newest cannot be told without its catalogue. Hint: pass "
            "the table that pyiceberg's catalogue loads."
        )
    return newest[0]


def _missing(title: str, extra: str) -> SetupError:
    return SetupError(
        f"a table of {title} is read through a package that is not installed, since its files may hold deleted rows. "
        f"Hint: pip install 'veilwood[{extra}]'."
    )
