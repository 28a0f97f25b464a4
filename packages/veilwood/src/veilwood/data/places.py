# SPDX-License-Identifier: Apache-2.0
"""Locations of data: paths, globs, remote addresses (``s3://``, ``https://``, ...), Delta Lake and Iceberg.

Folders of Delta Lake and Iceberg hold deleted rows, so they are never read file by file: their log names one version,
which is the same in every pass. Other tables that keep a log are rejected.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from veilwood.data.relations import Relation, open_delta_table, open_iceberg_table
from veilwood.errors import OutOfSchemaError, SetupError, VeilwoodError, redact_url

__all__ = [
    "ENDINGS",
    "FileLocation",
    "detect_lake",
    "find_local_paths",
    "find_locations",
    "is_address",
    "local_file",
    "open_lake",
    "reject_files_inside_lakes",
]

FORMATS: Final = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".xlsx": "excel",
    ".xls": "excel",
    ".ods": "excel",
}
ENDINGS: Final = ", ".join(FORMATS)
_STAMP_KEYS: Final = (
    "size",
    "mtime",
    "created",
    "modified",
    "LastModified",
    "ETag",
    "etag",
    "md5",
    "generation",
    "crc32c",
)


@dataclass(frozen=True)
class FileLocation:
    """Location of one file."""

    display_name: str
    """Name for messages, without the password or token of an address."""
    path: str
    """Path in its file system."""
    filesystem: Any = None
    """fsspec file system, or None for local files."""

    @property
    def name(self) -> str:
        """Last part of the path in lower case, without the query of a web address."""
        return self.path.replace("\\", "/").split("?")[0].rstrip("/").rsplit("/", 1)[-1].lower()

    @property
    def format(self) -> str | None:
        """Format of the table by its file name, or None if unknown."""
        return next((FORMATS[end] for end in FORMATS if self.name.endswith(end)), None)

    @property
    def is_tsv(self) -> bool:
        """Whether values are separated by tabs, by the file name."""
        return self.name.endswith((".tsv", ".tsv.gz"))

    def open(self) -> Any:
        """Open the file for reading, decompressed."""
        if self.filesystem is None:
            return pa.input_stream(self.path)
        file = pa.PythonFile(self.filesystem.open(self.path, "rb"), mode="r")
        return pa.CompressedInputStream(file, "gzip") if self.name.endswith(".gz") else file

    def open_dataset(self, form: Any) -> Any:
        """Open the file as an Arrow dataset."""
        import pyarrow.dataset as datasets  # slow to load

        return datasets.dataset(self.path, format=form, filesystem=self.filesystem)

    def read_stamp(self) -> tuple[tuple[Any, ...], ...]:
        """Return what changes with the file: size, modification time, entity tag."""
        if self.filesystem is None:
            try:
                state = Path(self.path).stat()
            except OSError:  # it is gone
                return ()
            return ((state.st_size, state.st_mtime_ns),)
        self.filesystem.invalidate_cache()
        told = self.filesystem.info(self.path)
        return (tuple(str(told.get(mark)) for mark in _STAMP_KEYS),)


def local_file(path: str | PathLike[str]) -> FileLocation:
    """Return the location of a local path."""
    return FileLocation(fspath(path), fspath(path))


def is_address(X: Any) -> bool:
    """Return True if a text is the address of a remote file or folder.

    >>> is_address("s3://bucket/visits"), is_address("C:/visits.csv")
    (True, False)
    """
    return isinstance(X, str) and "://" in X


def find_locations(X: str | PathLike[str]) -> list[FileLocation] | Relation:
    """Return the files behind a path, folder, glob or address, or the relation of a Delta Lake or Iceberg table."""
    if isinstance(X, str) and is_address(X):
        if X.startswith("file://"):
            return find_locations(X.removeprefix("file://"))
        with _redact_address_errors(X):
            return _find_remote(X)
    if Path(X).is_dir() and (lake := open_lake(fspath(X))) is not None:
        return lake
    return [local_file(path) for path in find_local_paths(X)]


def find_local_paths(X: str | PathLike[str]) -> list[Path]:
    """Return the files behind a local path, folder or glob."""
    path = Path(X)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and local_file(p).format)
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise _no_table_error(str(X))
    for path in paths:
        if not path.is_file():
            raise OutOfSchemaError(f"cannot read {str(path)!r}: it is not an ordinary file, and may have no end.")
    reject_files_inside_lakes(paths)
    return paths


def _find_remote(address: str) -> list[FileLocation] | Relation:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise SetupError("addresses need an extra. Hint: pip install 'veilwood[remote]'.") from None
    filesystem, path = url_to_fs(address)
    filesystem.invalidate_cache()  # files that another process has written since must be found
    if address.startswith(("http://", "https://")):  # a web server does not list the files next to one
        return [FileLocation(redact_url(address), path, filesystem)]
    if filesystem.isdir(path):
        names = filesystem.find(path)
        below = [name.removeprefix(path.rstrip("/") + "/") for name in names]
        if (kind := detect_lake(below)) is not None:
            return open_lake_format(kind, address, [name.removeprefix("metadata/") for name in below])
        found = sorted(name for name in names if FileLocation("", name).format)
    elif filesystem.isfile(path):
        found = [path]
    else:
        found = sorted(filesystem.glob(path))
    if not found:
        raise _no_table_error(redact_url(address))
    _reject_lake_files(filesystem, found)
    scheme = address.split("://")[0]
    return [FileLocation(redact_url(f"{scheme}://{name.lstrip('/')}"), name, filesystem) for name in found]


def _reject_lake_files(filesystem: Any, names: list[str]) -> None:
    """Reject files inside a table with a log, if one of the folders above them is such a table."""
    folders = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}
    for folder in sorted(filter(None, folders)):
        metadata = filesystem.glob(f"{folder}/metadata/*.metadata.json")
        logs = [log for log in ("_delta_log", ".hoodie") if filesystem.isdir(f"{folder}/{log}")]
        if detect_lake([*logs, *(f"metadata/{name.rsplit('/', 1)[-1]}" for name in metadata)]):
            raise OutOfSchemaError(
                f"the files in {folder!r} belong to a table that keeps a log of deleted rows. Hint: pass its folder."
            )


@contextmanager
def _redact_address_errors(address: str) -> Iterator[None]:
    """Replace the error of an unreachable address by one line: messages of other libraries may hold tokens."""
    try:
        yield
    except VeilwoodError:
        raise
    except Exception as error:
        extra = " Hint: install its package (s3fs, gcsfs, aiohttp)." if isinstance(error, ImportError) else ""
        raise OutOfSchemaError(
            f"cannot read {redact_url(address)!r} ({type(error).__name__}).{extra or ' Hint: check the address.'}"
        ) from None


def _no_table_error(display_name: str) -> OutOfSchemaError:
    return OutOfSchemaError(f"there is no table at {display_name!r}. Hint: pass a file, folder or glob ({ENDINGS}).")


# -- Delta Lake and Iceberg ------------------------------------------------------------------------------------------

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"
_VERSION: Final = re.compile(r"v?(\d+)(-.*)?\.metadata\.json(\.gz)?|v?(\d+)(-.*)?\.gz\.metadata\.json")


def detect_lake(names: Iterable[str]) -> str | None:
    """Return the kind of lake table whose folder holds these relative paths, or None.

    >>> detect_lake(["part-0.parquet", "_delta_log/0.json"]), detect_lake(["metadata/v1.metadata.json"])
    ('delta', 'iceberg')
    >>> detect_lake(["a.csv"])
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
    """Reject files that are parts of such a table: only its log tells which of their rows are live."""
    known: dict[Path, str | None] = {}
    for path in paths:
        for folder in path.absolute().parents:
            if folder not in known:
                known[folder] = _detect_lake_folder(folder)
            if known[folder] is not None:
                raise OutOfSchemaError(
                    f"{str(path)!r} belongs to a table of {_TITLES[known[folder] or '']}, whose files may contain "
                    f"deleted rows. Hint: pass the folder of the table, {str(folder)!r}."
                )


_TITLES: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}


def open_lake(folder: str) -> Relation | None:
    """Open a local folder if it is a table of Delta Lake or Iceberg. Return None if it is an ordinary folder."""
    kind = _detect_lake_folder(Path(folder))
    metadata = (path.name for path in (Path(folder) / _ICEBERG).glob("*"))
    return None if kind is None else open_lake_format(kind, folder, metadata)


def open_lake_format(lake_format: str, address: str, metadata: Iterable[str]) -> Relation:
    """Open a table of a known lake format; ``metadata`` are the file names in Iceberg's metadata folder."""
    if lake_format == "hudi":
        raise OutOfSchemaError(
            f"{address!r} is a Hudi table, which is not supported. Hint: pass a Spark frame, or write Parquet."
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
    """Return the newest metadata file by its number; only a catalogue can choose between two of the same number."""
    numbered = [(int(found[1] or found[4]), name) for name in names if (found := _VERSION.fullmatch(name))]
    highest = max(number for number, _ in numbered)
    newest = [name for number, name in numbered if number == highest]
    if len(newest) > 1:
        raise OutOfSchemaError(
            "only its catalogue can choose among the newest metadata files of this Iceberg table. Hint: pass "
            "the table that pyiceberg's catalogue loads."
        )
    return newest[0]


def _missing_package_error(title: str, extra: str) -> SetupError:
    return SetupError(
        f"a {title} table needs a package that is not installed, since its files may hold deleted rows. "
        f"Hint: pip install 'veilwood[{extra}]'."
    )
