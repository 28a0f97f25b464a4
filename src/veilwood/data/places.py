# SPDX-License-Identifier: Apache-2.0
"""Where files are: on this computer, or behind an address that fsspec knows (``s3://``, ``gs://``, ``https://``, ...).

A place is opened and stamped here; what stands in its file is read in ``files``.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from veilwood.data.arrow_datasets import arrow_datasets
from veilwood.data.lakes import lake_of, open_kind, open_lake, refuse_inside_lakes
from veilwood.data.relations import Relation
from veilwood.errors import OutOfSchemaError, SetupError, VeilwoodError
from veilwood.wording import without_secrets

__all__ = ["ENDINGS", "Place", "find_paths", "find_places", "is_address", "place_of"]

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
_MARKS: Final = ("size", "mtime", "created", "modified", "LastModified", "ETag", "etag", "md5", "generation", "crc32c")


@dataclass(frozen=True)
class Place:
    """A file."""

    where: str
    """What it is called in messages: no password or token of an address."""
    path: str
    """Where its file system finds it."""
    filesystem: Any = None
    """None for this computer's."""

    @property
    def name(self) -> str:
        """The last part of the path, in small letters, without what a web address may have behind it."""
        return self.path.replace("\\", "/").split("?")[0].rstrip("/").rsplit("/", 1)[-1].lower()

    @property
    def format(self) -> str | None:
        """What kind of table it is, by its name."""
        return next((FORMATS[end] for end in FORMATS if self.name.endswith(end)), None)

    @property
    def is_tsv(self) -> bool:
        """Whether cells are separated by tabs, by its name."""
        return self.name.endswith((".tsv", ".tsv.gz"))

    def open(self) -> Any:
        """Open it for reading, decompressed."""
        if self.filesystem is None:
            return pa.input_stream(self.path)
        file = pa.PythonFile(self.filesystem.open(self.path, "rb"), mode="r")
        return pa.CompressedInputStream(file, "gzip") if self.name.endswith(".gz") else file

    def dataset(self, form: Any) -> Any:
        """Open it as an Arrow dataset."""
        return arrow_datasets().dataset(self.path, format=form, filesystem=self.filesystem)

    def stamp(self) -> tuple[tuple[Any, ...], ...]:
        """Return what changes when the file does: its size, and when it was changed."""
        if self.filesystem is None:
            try:
                state = Path(self.path).stat()
            except OSError:  # it is gone
                return ()
            return ((state.st_size, state.st_mtime_ns),)
        self.filesystem.invalidate_cache()
        told = self.filesystem.info(self.path)
        return (tuple(str(told.get(mark)) for mark in _MARKS),)


def place_of(path: str | PathLike[str]) -> Place:
    """Return the place of a path on this computer."""
    return Place(fspath(path), fspath(path))


def is_address(X: Any) -> bool:
    """Whether a text is the address of a file or folder elsewhere.

    >>> is_address("s3://bucket/visits"), is_address("C:/visits.csv")
    (True, False)
    """
    return isinstance(X, str) and "://" in X


def find_places(X: str | PathLike[str]) -> list[Place] | Relation:
    """Find the files behind a path, folder, glob or address; a table of Delta Lake or Iceberg is read by its log."""
    if isinstance(X, str) and is_address(X):
        if X.startswith("file://"):
            return find_places(X.removeprefix("file://"))
        with _telling(X):
            return _behind(X)
    if Path(X).is_dir() and (lake := open_lake(fspath(X))) is not None:
        return lake
    return [place_of(path) for path in find_paths(X)]


def find_paths(X: str | PathLike[str]) -> list[Path]:
    """Find the files behind a path, folder or glob on this computer."""
    path = Path(X)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and place_of(p).format)
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(map(Path, glob.glob(str(X), recursive=True)))
    if not paths:
        raise _nothing(str(X))
    for path in paths:
        if not path.is_file():
            raise OutOfSchemaError(f"cannot read {str(path)!r}: it is not an ordinary file, and may have no end.")
    refuse_inside_lakes(paths)
    return paths


def _behind(address: str) -> list[Place] | Relation:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise SetupError("addresses need an extra. Hint: pip install 'veilwood[remote]'.") from None
    filesystem, path = url_to_fs(address)
    if address.startswith(("http://", "https://")):  # what lies beside a file cannot be told
        return [Place(without_secrets(address), path, filesystem)]
    if filesystem.isdir(path):
        names = filesystem.find(path)
        below = [name.removeprefix(path.rstrip("/") + "/") for name in names]
        if (kind := lake_of(below)) is not None:
            return open_kind(kind, address, [name.removeprefix("metadata/") for name in below])
        found = sorted(name for name in names if Place("", name).format)
    elif filesystem.isfile(path):
        found = [path]
    else:
        found = sorted(filesystem.glob(path))
    if not found:
        raise _nothing(without_secrets(address))
    _refuse_in_lakes(filesystem, found)
    scheme = address.split("://")[0]
    return [Place(without_secrets(f"{scheme}://{name.lstrip('/')}"), name, filesystem) for name in found]


def _refuse_in_lakes(filesystem: Any, names: list[str]) -> None:
    """Refuse files of a table that keeps a log, where it lies in one of the folders above them."""
    folders = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}
    for folder in sorted(filter(None, folders)):
        metadata = filesystem.glob(f"{folder}/metadata/*.metadata.json")
        logs = [log for log in ("_delta_log", ".hoodie") if filesystem.isdir(f"{folder}/{log}")]
        if lake_of([*logs, *(f"metadata/{name.rsplit('/', 1)[-1]}" for name in metadata)]):
            raise OutOfSchemaError(
                f"the files in {folder!r} belong to a table that keeps a log of deleted rows. Hint: pass its folder."
            )


@contextmanager
def _telling(address: str) -> Iterator[None]:
    """Say in one line that an address cannot be reached; the words of others may hold tokens."""
    try:
        yield
    except VeilwoodError:
        raise
    except Exception as error:
        extra = " Hint: is its package installed (s3fs, gcsfs, aiohttp)?" if isinstance(error, ImportError) else ""
        raise OutOfSchemaError(
            f"cannot read {without_secrets(address)!r} ({type(error).__name__}).{extra or ' Hint: check the address.'}"
        ) from None


def _nothing(where: str) -> OutOfSchemaError:
    return OutOfSchemaError(f"there is no table at {where!r}. Hint: give a file, folder or glob ({ENDINGS}).")
