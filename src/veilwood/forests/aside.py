# SPDX-License-Identifier: Apache-2.0
"""Units set aside for an evaluation: which they are is decided by a secret key, never by what they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from veilwood.data.batches import Batch, Source
from veilwood.data.cluster.source import ClusterSource
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Invalid
from veilwood.data.sql.source import SqlSource
from veilwood.data.weights import Weights
from veilwood.errors import ParameterError
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.loss import exact
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf
from veilwood.trees.counting import Assignment

_PARTS = 1000


@dataclass(frozen=True, repr=False)
class Aside:
    """A share of the units, drawn by a secret key: one coin for each row, or for all rows of an id.

    Notes
    -----
    Guarantee

    The coins of different units are independent and depend on no value, so that under add-remove one unit is in one of
    the two parts only and what is released of both costs the larger loss (proofs/evaluation.md, attacked by
    tests/forests/test_aside.py).
    """

    key: bytes
    thousandths: int

    @classmethod
    def of(cls, share: object) -> Aside:
        """Draw a key for a share of the units, between 0.01 and 0.9."""
        wanted = exact(share, "evaluate_share") if not isinstance(share, bool) else Fraction(0)
        if not Fraction(1, 100) <= wanted <= Fraction(9, 10):
            raise ParameterError("evaluate_share", share, "must lie between 0.01 and 0.9", "0.2 sets a fifth aside")
        return cls(secret_key(), round(wanted * _PARTS))

    def parts(
        self,
        X: Any,
        y: Any,
        encoding: Encoding,
        *,
        unit: Rows | RowsOf,
        invalid: Invalid,
        estimator: str,
        weights: Weights | None = None,
    ) -> tuple[Source, Source]:
        """Open the rows that are not set aside, and those that are."""
        opened = partial(open_rows, X, y, encoding, unit=unit, invalid=invalid, estimator=estimator, weights=weights)
        if isinstance(unit, RowsOf):
            return opened(keeps=lambda text: not self._has_id(text)), opened(keeps=self._has_id)
        source = opened()
        return self._part(source, False), self._part(source, True)

    def _has_id(self, text: str) -> bool:
        word = int.from_bytes(hashlib.shake_256(self.key + text.encode("utf-8", "surrogatepass")).digest(4), "big")
        return word * _PARTS >> 32 < self.thousandths

    def _part(self, source: Source, aside: bool) -> Source:
        """Keep the rows of one part, in every pass the same."""
        kept = partial(_kept, Assignment(self.key, _PARTS), self.thousandths, aside)
        if isinstance(source, SqlSource):
            return source.part(self.key, self.thousandths, aside)
        if isinstance(source, ClusterSource):
            return source.only(kept)

        def read() -> Iterator[Callable[[], Batch]]:
            for unread in source._read():
                yield partial(_then, unread, kept)

        return Source(read, source.once, source.n_partitions, one_for_one=source.one_for_one)


def costs_the_larger(neighbours: Neighbours) -> bool:
    """Whether what is released of two parts costs the larger loss: one unit, added or removed, is in one of them."""
    return neighbours.in_one_part


def _kept(coins: Assignment, thousandths: int, aside: bool, batch: Batch) -> Batch:
    drawn = coins.trees(batch.partition, batch.first_row, len(batch.target)) < thousandths
    mine = drawn == aside
    return batch._replace(codes=batch.codes[mine], target=batch.target[mine])


def _then(unread: Callable[[], Batch], kept: Callable[[Batch], Batch]) -> Batch:
    return kept(unread())
