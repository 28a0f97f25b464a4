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

from veilwood.data.relations import Relation, open_delta_table, open_iceberg_table
from veilwood.errors import OutOfSchemaError, SetupError

__all__ = ["detect_lake", "open_lake", "reject_files_inside_lakes"]

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"
_VERSION: Final = re.compile(r"v?(\d+)(-.*)?\.metadata\.json(\.gz)?|v?(\d+)(-.*)?\.gz\.metadata\.json")


def detect_lake(names: Iterable[str]) -> str | None:
    """Tell by what lies in a folder, as paths relative to it, whose table it is.

    >>> detect_lake(["part-0.parquet", "_delta_log/0.json"]), detect_lake(["metadata/v1.metadata.json"]), detect_lake(["a.csv"])
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


def _detect_lake_folder(folder: Path) -> str | None:
    if (folder / _DELTA).is_dir() or (folder / _HUDI).is_dir():
        return "delta" if (folder / _DELTA).is_dir() else "hudi"
    found = (folder / _ICEBERG).glob("*.metadata.json")
    return detect_lake(f"{_ICEBERG}/{path.name}" for path in found)


def reject_files_inside_lakes(paths: Iterable[Path]) -> None:
    """Refuse files that are parts of such a table: which of their rows are live, only its log says."""
    known: dict[Path, str | None] = {}
    for path in paths:
        for folder in path.absolute().parents:
            if folder not in known:
                known[folder] = _detect_lake_folder(folder)
            if known[folder] is not None:
                raise OutOfSchemaError(
                    f"{str(path)!r} belongs to a table of {_TITLES[known[folder] or '']}, of whose files some rows may "
                    f"be deleted. Hint: pass the folder of the table, {str(folder)!r}."
                )


_TITLES: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}


def open_lake(folder: str) -> Relation | None:
    """Open a folder on this computer if it is a table of Delta Lake or Iceberg; None if it is an ordinary one."""
    kind = _detect_lake_folder(Path(folder))
    metadata = (path.name for path in (Path(folder) / _ICEBERG).glob("*"))
    return None if kind is None else open_lake_format(kind, folder, metadata)


def open_lake_format(lake_format: str, address: str, metadata: Iterable[str]) -> Relation:
    """Open a table by what it was found to be; ``metadata`` are the names in Iceberg's folder of them."""
    if lake_format == "hudi":
        raise OutOfSchemaError(
            f"{address!r} is a table of Hudi, which is not read. Hint: pass a Spark frame, or write Parquet."
        )
    return _open_delta(address) if lake_format == "delta" else _open_iceberg(address, metadata)


def _open_delta(address: str) -> Relation:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise _missing_package_error("Delta Lake", "delta") from None
    return open_delta_table(DeltaTable(address))


def _open_iceberg(address: str, metadata: Iterable[str]) -> Relation:
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise _missing_package_error("Iceberg", "iceberg") from None
    return open_iceberg_table(
        StaticTable.from_metadata(f"{address.rstrip('/')}/{_ICEBERG}/{_newest_metadata(metadata)}")
    )


def _newest_metadata(names: Iterable[str]) -> str:
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


def _missing_package_error(title: str, extra: str) -> SetupError:
    return SetupError(
        f"a table of {title} is read through a package that is not installed, since its files may hold deleted rows. "
        f"Hint: pip install 'veilwood[{extra}]'."
    )
