# SPDX-License-Identifier: Apache-2.0
"""Converters from original files to the rows of the papers' data sets. A hash verifies the result (``fetch``).

Each converter takes the bytes of one file, or of a file inside an archive, and the facts of a data set. It returns the
rows as strings, in the order of the schema's columns.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import importlib.resources
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyarrow import parquet

TextRows = list[list[str]]
Facts = dict[str, Any]


def cell_text(raw: bytes) -> str:
    """Decode a file as UTF-8, replacing invalid bytes: some files predate UTF-8."""
    return raw.decode("utf-8-sig", errors="replace")


def _parse_lines(raw: bytes, delimiter: str = ",") -> TextRows:
    rows = csv.reader(cell_text(raw).splitlines(), delimiter=delimiter, skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if row]


def _parse_records(raw: bytes, delimiter: str = ",") -> list[dict[str, str]]:
    head, *rows = _parse_lines(raw, delimiter)
    return [dict(zip(head, row, strict=True)) for row in rows]


def _format_integer(text: str) -> str:
    """Format an integer without a decimal point."""
    number = float(text)
    return str(int(number)) if number == int(number) else text


def as_they_are(raw: bytes, facts: Facts) -> TextRows:
    """Parse comma-separated rows without a header, in the schema's column order."""
    return _parse_lines(raw)


def without_header(raw: bytes, facts: Facts) -> TextRows:
    """Parse comma-separated rows in the schema's column order, and drop the header."""
    return _parse_lines(raw)[1:]


def class_first(raw: bytes, facts: Facts) -> TextRows:
    """Parse comma-separated rows without a header, and move the class from first to last."""
    return [[*row[1:], row[0]] for row in _parse_lines(raw)]


def packed(raw: bytes, facts: Facts) -> TextRows:
    """Parse gzip-compressed, comma-separated rows without a header."""
    return _parse_lines(gzip.decompress(raw))


def columns_of_parquet(raw: bytes, facts: Facts) -> TextRows:
    """Read a Parquet file whose columns are in the schema's order. Their names are ignored."""
    table = parquet.read_table(io.BytesIO(raw))
    return [[str(cell) for cell in row] for row in zip(*table.to_pydict().values(), strict=True)]


def heart(raw: bytes, facts: Facts) -> TextRows:
    """Parse KEEL's Cleveland file: a header of attributes, then numbers. Every degree of disease becomes class 1."""
    rows = _parse_lines(raw[raw.index(b"@data") + len(b"@data") :])
    return [[*map(_format_integer, row[:-1]), str(int(row[-1] != "0"))] for row in rows]


def mammographic(raw: bytes, facts: Facts) -> TextRows:
    """Parse UCI's file: a missing age becomes an empty value, and the single BI-RADS value 55, a typo, becomes 5."""
    return [["5" if row[0] == "55" else row[0], "" if row[1] == "?" else row[1], *row[2:]] for row in _parse_lines(raw)]


def titanic(raw: bytes, facts: Facts) -> TextRows:
    """Parse the file of a university course: drop names, and move the target to the end."""
    columns = ("Pclass", "Sex", "Age", "Siblings/Spouses Aboard", "Parents/Children Aboard", "Fare", "Survived")
    return [[record[column] for column in columns] for record in _parse_records(raw)]


def parkinsons(raw: bytes, facts: Facts) -> TextRows:
    """Parse UCI's file without the subject number and the motor score."""
    rows = _parse_lines(raw)[1:]
    return [[*row[1:4], *row[6:], row[5]] for row in rows]


def appliances(raw: bytes, facts: Facts) -> TextRows:
    """Parse UCI's file without its two random columns; derive month and day from the date, and keep four decimals."""
    rows = []
    for date, used, *row in _parse_lines(raw)[1:]:
        numbers = [repr(round(float(cell), 4)) for cell in row[:-2]]
        rows.append([*numbers, str(int(date[5:7])), str(int(date[8:10])), used])
    return rows


def traffic(raw: bytes, facts: Facts) -> TextRows:
    """Parse UCI's file: derive weekday and hour from the time, and drop the weather description."""
    rows = []
    for record in _parse_records(gzip.decompress(raw)):
        when = datetime.datetime.fromisoformat(record["date_time"])
        holiday = "No holiday" if record["holiday"] in ("None", "") else record["holiday"]
        rows.append([
            holiday, record["temp"], record["rain_1h"], record["snow_1h"], record["clouds_all"], record["weather_main"],
            str(when.weekday()), str(when.hour), record["traffic_volume"],
        ])  # fmt: skip
    return rows


def turbine(raw: bytes, facts: Facts) -> TextRows:
    """Parse UCI's archive of five years, and move the energy yield to the end."""
    names = [column["name"] for column in facts["columns"]]
    rows: TextRows = []
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".csv")):
            rows += [[record[column] for column in names] for record in _parse_records(archive.read(name))]
    return rows


def credit(raw: bytes, facts: Facts) -> TextRows:
    """Parse a copy of UCI's table in which sex starts at 0 and education and marriage are one-hot encoded."""
    rows = []
    for record in _parse_records(raw):
        marks = {key: next(k for k in range(9) if record.get(f"{key}_{k}") == "1") for key in ("EDUCATION", "MARRIAGE")}
        # The columns that are not one-hot encoded stay in the order of the file.
        rest = [v for k, v in record.items() if k not in ("ID", "LIMIT_BAL", "SEX") and not k.startswith(tuple(marks))]
        rows.append([
            record["LIMIT_BAL"], str(int(record["SEX"]) + 1), str(marks["EDUCATION"]), str(marks["MARRIAGE"]), *rest,
        ])  # fmt: skip
    return rows


def flights(raw: bytes, facts: Facts) -> TextRows:
    """Return the complete records of flights that left New York City from January to April 2013."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        records = _parse_records(archive.read("flights.csv"))
    rows = []
    for record in records:
        year, month, day = (int(record[name]) for name in ("year", "month", "day"))
        cells = [record[name] for name in ("dep_time", "arr_time", "air_time", "distance", "arr_delay")]
        if month <= 4 and all(cell not in ("", "NA") for cell in cells):
            rows.append([str(month), str(day), str(datetime.date(year, month, day).isoweekday()), *cells])
    return rows


def sparse(raw: bytes, facts: Facts) -> TextRows:
    """Parse LIBSVM's file of binary columns: a label, then the numbers of the columns that are 1."""
    width = len(facts["columns"]) - 1
    rows = []
    for line in cell_text(raw).split("\n"):
        label, *entries = line.split() or [""]
        if label:
            ones = {int(entry.split(":")[0]) for entry in entries}
            rows.append([*(str(int(number in ones)) for number in range(1, width + 1)), str(int(float(label) > 0))])
    return rows


def posture(raw: bytes, facts: Facts) -> TextRows:
    """Return the accelerometer rows except walking, with "sitting down" as sitting and "standing up" as standing."""
    merged = {"sittingdown": "sitting", "standingup": "standing"}
    return [[*row[:-1], merged.get(row[-1], row[-1])] for row in movements(raw, facts) if row[-1] != "walking"]


def movements(raw: bytes, facts: Facts) -> TextRows:
    """Parse the accelerometer archive, which has decimal commas; drop the person and the body mass index."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".csv"))
        rows = _parse_lines(archive.read(name), ";")[1:]
    converted = []
    for _, gender, age, height, weight, _, *rest in rows:
        *accelerations, label = rest
        # In one row, a timestamp is appended to a value; the number comes first.
        cells = [cell.split(" ")[0][:4] if len(cell) > 6 else cell for cell in accelerations]
        converted.append([gender.lower(), age, height.replace(",", "."), weight, *cells, label])
    return converted


def adult_to_a9a(adult: Iterable[list[str]], adult_facts: Facts) -> TextRows:
    """Return the 123 binary columns of LIBSVM's a9a from rows of Adult: one per interval or category."""
    cuts = {
        "age": (25, 32, 40, 49),
        "fnlwgt": (106647, 158661, 196337, 259872),
        "education_num": (8, 9, 10, 12),
        "capital_gain": (0,),
        "capital_loss": (0,),
        "hours_per_week": (34, 39, 40, 47),
    }
    converted = []
    for row in adult:
        bits = []
        for column, cell in zip(adult_facts["columns"][:-1], row, strict=False):
            if column["name"] in cuts:
                edges = cuts[column["name"]]
                interval = sum(float(cell) > edge for edge in edges)
                bits += [str(int(interval == i)) for i in range(len(edges) + 1)]
            else:
                bits += [str(int(cell == value)) for value in column["values"] if value != "?"]
        converted.append([*bits, str(int(row[-1] == ">50K"))])
    return converted


@dataclass(frozen=True)
class Origin:
    """Origin of a data set: a file inside a package, a URL, or another data set to derive it from.

    ``tried`` is True if an earlier download from this origin had the right hash.
    """

    convert: Callable[[bytes, Facts], TextRows]
    citation: str
    package: str = ""
    inside: str = ""
    address: str = ""
    follows_from: str = ""
    tried: bool = False

    @property
    def describe_place(self) -> str:
        """Human-readable name of the origin."""
        if self.follows_from:
            return f"from the rows of {self.follows_from}"
        return f"{self.inside} in the package {self.package}" if self.package else self.address


def _no_rows(raw: bytes, facts: Facts) -> TextRows:
    return []


def _read_origins() -> dict[str, Origin]:
    read = json.loads((importlib.resources.files("veilwood_papers") / "sources.json").read_text(encoding="utf-8"))
    origins = {}
    for name, fields in read["origins"].items():
        fields["convert"] = globals()[fields["convert"]] if "convert" in fields else _no_rows
        fields["address"] = fields.get("address", "").replace("{UCI}", read["UCI"])
        origins[name] = Origin(**fields)
    return origins


SOURCES: dict[str, Origin] = _read_origins()
