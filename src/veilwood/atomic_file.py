# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all, and the folder of those that can be made again."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from os import PathLike
from pathlib import Path

from veilwood.errors import FileError
from veilwood.wording import shown


def write_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all: under another name first, then renamed."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise FileError(
            f"cannot write {shown(str(path))}: {error.strerror or error}. "
            "Hint: choose another place, or make room there."
        ) from None


CACHE = "VEILWOOD_CACHE"  # a variable that names the folder; "off" for none


def cache_folder(name: str) -> Path | None:
    """Return where a kind of files that can be made again is kept for this user; None if nothing is to be kept."""
    given = os.environ.get(CACHE)
    if given == "off":
        return None
    if given:
        return Path(given) / name
    if sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "veilwood" / name
