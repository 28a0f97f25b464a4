# SPDX-License-Identifier: Apache-2.0
"""Rows held in memory: a dataframe, an array or a list, encoded at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from veilwood.data.batches import Batch, Source, encode_rows, kept_of, view
from veilwood.data.encoding import Encoding
from veilwood.data.problems import Invalid
from veilwood.data.row_cap import Keeps, choose_rows, no_id
from veilwood.data.weights import Weights
from veilwood.privacy.neighbours import RowsOf

__all__ = ["open_memory"]


def open_memory(
    X: Any,
    y: Any,
    encoding: Encoding,
    *,
    cap: RowsOf | None,
    invalid: Invalid,
    batch_rows: int,
    estimator: str,
    keeps: Keeps | None = None,
    weights: Weights | None = None,
) -> Source:
    """Encode a table and its target."""
    table = view(X, encoding, invalid)
    extra = () if cap is None else (cap.id,)
    batch, fits = encode_rows(encoding, table, y, invalid=invalid, allowed_extra=extra, estimator=estimator)
    chosen = None
    if cap is not None:
        ids = table.named(cap.id)
        if ids is None:
            raise no_id(cap)
        (chosen,) = choose_rows([[ids]], cap, invalid, keeps)
    if weights is None:
        codes, target, *_ = kept_of(batch, chosen, fits)
    else:
        copies = weights.copies(len(batch.target), invalid)
        for mask in (chosen, fits):
            copies = copies if mask is None else copies * mask
        codes, target = np.repeat(batch.codes, copies, axis=0), np.repeat(batch.target, copies)

    def read() -> Iterator[Callable[[], Batch]]:
        for start in range(0, max(len(codes), 1), batch_rows):
            rows = slice(start, start + batch_rows)
            yield partial(Batch, codes[rows], target[rows], 0, start)

    return Source(read, one_for_one=weights is None)
