# SPDX-License-Identifier: Apache-2.0
"""Conversion of original files to rows, and their sources."""

from __future__ import annotations

import gzip
import io
import zipfile
from typing import Any

import pytest

from veilwood_papers import convert, tables
from veilwood_papers import convert as sources


def zipped(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "."), text)
    return out.getvalue()


@pytest.mark.parametrize(
    ("converter", "raw", "row"),
    [
        (convert.class_first, b"p,x,s\n", ["x", "s", "p"]),
        (convert.packed, gzip.compress(b"39, State-gov, <=50K\n"), ["39", "State-gov", "<=50K"]),
        (convert.heart, b"@relation x\n@data\n63.0,1.0,2.3,2\n", ["63", "1", "2.3", "1"]),
        (convert.mammographic, b"55,?,3,5,3,1\n", ["5", "", "3", "5", "3", "1"]),
        (
            convert.titanic,
            b"Survived,Pclass,Name,Sex,Age,Siblings/Spouses Aboard,Parents/Children Aboard,Fare\n"
            b"0,3,Mr. Owen,male,22,1,0,7.25\n",
            ["3", "male", "22", "1", "0", "7.25", "0"],
        ),
        (convert.parkinsons, b"head\n1,72,0,5.6,28.1,34.3,.006,.003\n", ["72", "0", "5.6", ".006", ".003", "34.3"]),
        (
            convert.appliances,
            b'head\n"2016-01-11 17:00:00","60","30","19.88999","47.596667","5.3","13.2","13.2"\n',
            ["30.0", "19.89", "47.5967", "5.3", "1", "11", "60"],
        ),
        (
            convert.traffic,
            gzip.compress(
                b"holiday,temp,rain_1h,snow_1h,clouds_all,weather_main,weather_description,date_time,traffic_volume\n"
                b"None,288.28,0.0,0.0,40,Clouds,scattered,2012-10-02 09:00:00,5545\n"
            ),
            ["No holiday", "288.28", "0.0", "0.0", "40", "Clouds", "1", "9", "5545"],
        ),
        (convert.sparse, b"-1 2:1 3:1 \n", ["0", "1", "1", "0"]),
        (
            convert.posture,
            zipped(har__csv="user;gender;age;m;kg;bmi;x1;y1;class\njo;Woman;46;1,62;75;28,6;-3;92;standingup\n"),
            ["woman", "46", "1.62", "75", "-3", "92", "standing"],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_files_of_origins_become_rows(converter: Any, raw: bytes, row: list[str]) -> None:
    assert converter(raw, {"columns": [{}] * 4}) == [row]


def test_years_of_turbines_are_joined_in_order() -> None:
    facts = {"columns": [{"name": "AT"}, {"name": "TEY"}]}
    assert convert.turbine(zipped(gt_2012__csv="TEY,AT\n2,1\n", gt_2011__csv="TEY,AT\n9,8\n"), facts) == [
        ["8", "9"], ["1", "2"],
    ]  # fmt: skip


def test_a9a_has_one_bit_for_each_known_cell() -> None:
    facts = tables.known_tables()["adult"]
    row = ["39", "?", "77516", "Bachelors", "13", "Never-married", "Sales", "Husband", "White", "Male", "0", "0", "40",
           "United-States", ">50K"]  # fmt: skip
    (bits,) = convert.adult_to_a9a([row], facts)
    assert len(bits) == 124
    assert sum(map(int, bits[:-1])) == 13, "fourteen columns, one of them unknown"
    assert bits[-1] == "1"
    assert bits[2] == "1", "age 33 to 40"


def test_every_source_is_of_a_known_table_and_says_where_it_comes_from() -> None:
    for name, source in sources.SOURCES.items():
        assert name in tables.known_tables()
        assert sum(map(bool, (source.package, source.address, source.follows_from))) == 1
        assert source.citation
        assert source.describe_place
