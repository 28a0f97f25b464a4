# SPDX-License-Identifier: Apache-2.0
"""Shared by data/test_open_rows.py and other tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet

from veilwood.data.batches import Source
from veilwood.data.columns import Column
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema

SCHEMA = Schema(
    "shop",
    "classification",
    Column("class", "categorical", values=("0", "1")),
    (
        Column("code", "categorical", values=("NA", "?", "null", "7")),
        Column("size", "numeric", lower=0, upper=10, nullable=True),
    ),
)


ENCODING = Encoding(SCHEMA)


N = 1000


def make_frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    size = rng.uniform(0, 10, N).round(3)
    size[::50] = np.nan
    code = rng.choice(["NA", "?", "null", "7"], N).astype(object)
    return pd.DataFrame({"size": size, "class": rng.integers(0, 2, N), "code": code})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.name.endswith((".csv", ".csv.gz")):
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=300)
    else:
        pa.feather.write_feather(frame, str(path))
    return path


def contents(source: Source) -> tuple[list[Any], list[Any]]:
    batches = list(source.batches())
    return np.concatenate([b.codes for b in batches]).tolist(), np.concatenate([b.target for b in batches]).tolist()


EXPECTED = contents(open_rows(make_frame(), None, ENCODING))
