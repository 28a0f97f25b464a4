# SPDX-License-Identifier: Apache-2.0
"""Locations of data: paths, globs, remote addresses (``s3://``, ``https://``, ...), and folders of lake tables.

The files of a lake table (Delta Lake, Iceberg) may contain deleted rows and are never read individually. The log of the
table names one version, and every pass reads that version. Other tables with a log are rejected.
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

from veilwood.data.relations import Relation
from veilwood.errors import OutOfSchemaError, SetupError, VeilwoodError, redact_url
from veilwood.siblings import load_lakes

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
# Metadata that changes with a file, under the names that different file systems use.
_STAMPS: Final = ("size", "mtime", "created", "modified", "LastModified", "ETag", "etag", "md5", "generation", "crc32c")
_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"  # folders by which a lake table is recognized
_ICEBERG_VERSION: Final = re.compile(r"v?(\d+)(-.*)?\.metadata\.json(\.gz)?|v?(\d+)(-.*)?\.gz\.metadata\.json")
_LAKE_TITLES: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}


@dataclass(frozen=True)
class FileLocation:
    """Location of one file."""

    display_name: str  # for messages: without the password or token of an address
    path: str  # in its file system
    filesystem: Any = None  # of fsspec; None for local files

    @property
    def name(self) -> str:
        """File name: last part of the path, in lower case and without the query of a web address."""
        return self.path.replace("\\", "/").split("?")[0].rstrip("/").rsplit("/", 1)[-1].lower()

    @property
    def format(self) -> str | None:
        """Format of the table, determined by its file name, or None if unknown."""
        return next((FORMATS[end] for end in FORMATS if self.name.endswith(end)), None)

    @property
    def is_tsv(self) -> bool:
        """Whether values are separated by tabs, according to the file name."""
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
        """Return metadata that changes with the file: size, modification time, entity tag."""
        if self.filesystem is None:
            try:
                state = Path(self.path).stat()
            except OSError:  # the file no longer exists
                return ()
            return ((state.st_size, state.st_mtime_ns),)
        self.filesystem.invalidate_cache()
        info = self.filesystem.info(self.path)
        return (tuple(str(info.get(key)) for key in _STAMPS),)


def local_file(path: str | PathLike[str]) -> FileLocation:
    """Return the location of a local path."""
    return FileLocation(fspath(path), fspath(path))


def find_locations(X: str | PathLike[str]) -> list[FileLocation] | Relation:
    """Return the files behind a path, folder, glob or address, or the relation of a Delta Lake or Iceberg table."""
    if isinstance(X, str) and "://" in X:
        if X.startswith("file://"):
            return find_locations(X.removeprefix("file://"))
        with _redact_address_errors(X):
            return _find_remote(X)
    return _find_local(X)


def _find_local(X: str | PathLike[str]) -> list[FileLocation] | Relation:
    path = Path(X)
    if path.is_dir():
        if (lake := _detect_local_lake(path)) is not None:
            return _open_lake(lake, fspath(X), (file.name for file in (path / _ICEBERG).glob("*")))
        paths = sorted(p for p in path.rglob("*") if p.is_file() and local_file(p).format)
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise _no_table_error(str(X))
    for path in paths:
        if not path.is_file():
            raise OutOfSchemaError(
                f"cannot read {str(path)!r}: it is not an ordinary file and may never end. Hint: copy "
                "its contents to a file."
            )
    for folder in sorted({folder for path in paths for folder in path.absolute().parents}):
        if (lake := _detect_local_lake(folder)) is not None:
            raise _lake_file_error(lake, str(folder))
    return [local_file(path) for path in paths]


def _find_remote(address: str) -> list[FileLocation] | Relation:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise SetupError("remote addresses need an extra. Hint: run pip install 'veilwood[remote]'.") from None
    filesystem, path = url_to_fs(address)
    filesystem.invalidate_cache()  # files that another process has written since must be found
    if address.startswith(("http://", "https://")):  # a web server does not list the files in a folder
        return [FileLocation(redact_url(address), path, filesystem)]
    if filesystem.isdir(path):
        names = filesystem.find(path)
        below = [name.removeprefix(path.rstrip("/") + "/") for name in names]
        if (lake := _detect_lake(below)) is not None:
            return _open_lake(lake, address, [name.removeprefix(f"{_ICEBERG}/") for name in below])
        found = sorted(name for name in names if FileLocation("", name).format)
    elif filesystem.isfile(path):
        found = [path]
    else:
        found = sorted(filesystem.glob(path))
    if not found:
        raise _no_table_error(redact_url(address))
    parts = [name.split("/") for name in found]
    for folder in sorted({"/".join(part[:depth]) for part in parts for depth in range(1, len(part))} - {""}):
        metadata = filesystem.glob(f"{folder}/{_ICEBERG}/*.metadata.json")
        logs = [log for log in (_DELTA, _HUDI) if filesystem.isdir(f"{folder}/{log}")]
        lake = _detect_lake([*logs, *(f"{_ICEBERG}/{name.rsplit('/', 1)[-1]}" for name in metadata)])
        if lake is not None:
            raise _lake_file_error(lake, folder)
    scheme = address.split("://")[0]
    return [FileLocation(redact_url(f"{scheme}://{name.lstrip('/')}"), name, filesystem) for name in found]


@contextmanager
def _redact_address_errors(address: str) -> Iterator[None]:
    """Replace the error for an unreachable address with one line: messages of other libraries may contain tokens."""
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


# -- folders of lake tables --------------------------------------------------------------------------------------------


def _detect_lake(names: Iterable[str]) -> str | None:
    """Return the kind of lake table whose folder contains these relative paths, or None.

    >>> _detect_lake(["part-0.parquet", "_delta_log/0.json"]), _detect_lake(["metadata/v1.metadata.json"])
    ('delta', 'iceberg')
    >>> _detect_lake(["a.csv"])
    """
    parts = [name.split("/") for name in names]
    if any(part[0] == _DELTA for part in parts):
        return "delta"
    if any(part[0] == _HUDI for part in parts):
        return "hudi"
    if any(len(part) == 2 and part[0] == _ICEBERG and _ICEBERG_VERSION.fullmatch(part[1]) for part in parts):
        return "iceberg"
    return None


def _detect_local_lake(folder: Path) -> str | None:
    metadata = (f"{_ICEBERG}/{path.name}" for path in (folder / _ICEBERG).glob("*.metadata.json"))
    return _detect_lake([*(log for log in (_DELTA, _HUDI) if (folder / log).is_dir()), *metadata])


def _lake_file_error(lake: str, folder: str) -> OutOfSchemaError:
    return OutOfSchemaError(
        f"the files in {folder!r} belong to a {_LAKE_TITLES[lake]} table and may contain deleted rows. "
        "Hint: pass the folder of the table."
    )


def _open_lake(lake: str, address: str, metadata: Iterable[str]) -> Relation:
    """Open a lake table; ``metadata`` are the file names in the metadata folder of an Iceberg table."""
    if lake == "hudi":
        raise OutOfSchemaError(
            f"{redact_url(address)!r} is a Hudi table, which is not supported. Hint: pass a Spark frame, or write "
            "Parquet."
        )
    if lake == "iceberg":
        address = f"{address.rstrip('/')}/{_ICEBERG}/{_newest_metadata(metadata)}"
    relation: Relation = load_lakes(lake).open_lake_at(address, lake)
    return relation


def _newest_metadata(names: Iterable[str]) -> str:
    """Return the metadata file with the highest number. Raise OutOfSchemaError if several files share it."""
    numbered = [(int(found[1] or found[4]), name) for name in names if (found := _ICEBERG_VERSION.fullmatch(name))]
    highest = max(number for number, _ in numbered)
    newest = [name for number, name in numbered if number == highest]
    if len(newest) > 1:
        raise OutOfSchemaError(
            "the Iceberg table has several newest metadata files, and only its catalogue can choose one. Hint: pass "
            "the table that pyiceberg's catalogue loads."
        )
    return newest[0]
