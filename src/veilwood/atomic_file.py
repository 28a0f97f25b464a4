# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import os
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
