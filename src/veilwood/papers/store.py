# SPDX-License-Identifier: Apache-2.0
"""Results kept by job in one CSV file an experiment: what a killed run has finished is not measured again."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable
from pathlib import Path

from veilwood.atomic_file import write_file
from veilwood.errors import FileError
from veilwood.papers.exhibit import Cell, Row

HEAD = ("job", "panel", "curve", "x", "measure", "repeat", "value")
SAVE_SECONDS = 2.0


class ResultStore:
    """The rows of one experiment, by job; written whole every few seconds and at the end.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = ResultStore(folder / "mrf.csv")
    >>> store.add("Car, 0", [Row(Cell("Car", "training", "1"), 0, 0.75)])
    >>> store.save()
    >>> "Car, 0" in ResultStore(folder / "mrf.csv")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path, self._saved = path, time.monotonic()
        self._rows: dict[str, list[Row]] = {}
        if path.exists():
            self._read(path)

    def __contains__(self, job: str) -> bool:
        return job in self._rows

    def add(self, job: str, rows: Iterable[Row]) -> None:
        """Keep what a job found; it is on disk a few seconds later, when another job ends, or after ``save``."""
        self._rows[job] = list(rows)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def rows(self, jobs: Iterable[str]) -> list[Row]:
        """Return the rows of some jobs, as far as they are done."""
        return [row for job in jobs for row in self._rows.get(job, ())]

    def save(self) -> None:
        """Write the file, whole or not at all."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        for job, rows in self._rows.items():
            writer.writerows([job, *row.cell, row.repeat, repr(float(row.value))] for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, text.getvalue().encode())
        self._saved = time.monotonic()

    def _read(self, path: Path) -> None:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            if tuple(next(lines, ())) != HEAD:
                raise FileError(f"{path} is no file of results. Hint: give another folder with --out.")
            try:
                for job, panel, curve, x, measure, repeat, value in lines:
                    row = Row(Cell(panel, curve, x, measure), int(repeat), float(value))
                    self._rows.setdefault(job, []).append(row)
            except ValueError:
                raise FileError(f"{path} is damaged. Hint: delete it; what it held is then measured again.") from None
