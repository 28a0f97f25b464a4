# SPDX-License-Identifier: Apache-2.0
"""Rows as shares of one-hot codes: what owners encode, how servers join it, and the checks before it is used.

How shares are made is in ``shares``; what is computed from them in ``hidden_tree``, ``id3`` and ``forests``.

| letter | meaning |
|---|---|
| n | rows |
| m | features |
| w | values of a feature: the largest domain; smaller ones are filled with dummy values that never occur |
| u | classes |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, OutOfSchemaError, SchemaError, UseError
from veilwood_secure.mpc.engine import Engine, Shared, concatenate

OneHot = NDArray[np.uint8]

MAX_CELLS = 1 << 31
MAX_COUNT: Final = 1 << 26
"""Rows of all owners where histograms are counted: what is computed of them stays below 2^60."""

MAX_TOTAL: Final = 1 << 60
"""What the sizes of all other sums of a question add up to at most, whatever owners send: words have 64 bits."""

N_SUBSETS = 80  # whose sums are looked at: a number that is too large stays unseen in half of them
"""One-hot cells of a table above which encoding is refused: what does not fit one message does not fit memory."""


@dataclass(frozen=True)
class Domain:
    """The public shape of rows: how many values each feature has, and how many classes there are.

    >>> Domain((3, 2), 2).width
    3
    """

    sizes: tuple[int, ...]
    n_classes: int

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.n_classes < 2:
            raise UseError(f"sizes={self.sizes}, n_classes={self.n_classes}: features and classes are missing.")

    @classmethod
    def from_schema(cls, schema: Schema) -> Domain:
        """Read the domain off a schema: categories, and the bins of numeric columns."""
        if schema.task != "classification":
            raise SchemaError(f"schema {schema.name!r} is for {schema.task}, and secure trees predict classes.")
        return cls(Encoding(schema, "bins").n_codes, len(schema.classes))

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """The common number of values, w."""
        return max(self.sizes)

    @property
    def dummy_mask(self) -> NDArray[np.bool_]:
        """Which of the m times w values are fillers that no row has."""
        return np.arange(self.width) >= np.array(self.sizes)[:, None]


def encode_one_hot(codes: ArrayLike, domain: Domain) -> OneHot:
    """Return the one-hot codes of rows, shape (m, w, n); what an owner or a user then shares.

    >>> encode_one_hot([[0, 1], [2, 0]], Domain((3, 2), 2))[:, :, 0].tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    places = np.asarray(codes)
    if places.ndim != 2 or places.shape[1] != domain.n_features:
        raise UseError(f"rows have shape {places.shape}, and the domain has {domain.n_features} features.")
    if places.size * domain.width > MAX_CELLS:
        raise DomainTooLargeError(f"{len(places)} rows are too many for one table. Hint: send them in parts.")
    if places.size and (places.min() < 0 or (places.max(axis=0) >= np.array(domain.sizes)).any()):
        raise OutOfSchemaError(f"a code lies outside the domain {domain.sizes}. Hint: encode rows by the schema.")
    return np.asarray(places.T[:, None, :] == np.arange(domain.width)[:, None], np.uint8)


def encode_classes(target: ArrayLike, domain: Domain) -> OneHot:
    """Return the one-hot classes of rows, shape (u, n); a row of class -1 is padding and counts nowhere.

    Padding hides how many rows an owner has: fill up to a number that is public.

    >>> encode_classes([1, 0, -1], Domain((3,), 2)).tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    places = np.asarray(target)
    if places.size and (places.min() < -1 or places.max() >= domain.n_classes):
        raise OutOfSchemaError(f"a class lies outside 0 to {domain.n_classes - 1}. Hint: -1 marks padding.")
    return np.asarray(places == np.arange(domain.n_classes)[:, None], np.uint8)


def encode_table(schema: Schema, X: Any, y: Any) -> tuple[OneHot, OneHot]:
    """Encode a table by a schema: one-hot features (m, w, n) and classes (u, n), ready to be shared."""
    encoding, domain = Encoding(schema, "bins"), Domain.from_schema(schema)
    return encode_one_hot(encoding.encode(X), domain), encode_classes(encoding.encode_target(y), domain)


@dataclass(frozen=True)
class SharedRows:
    """Rows held in shares: one-hot features, shape (m, w, n), and one-hot classes, shape (u, n)."""

    features: Shared
    classes: Shared

    @property
    def n_rows(self) -> int:
        """Rows, padding included: what servers see of the number of records."""
        return self.features.shape[-1]


def stack_owner_rows(parts: Sequence[SharedRows]) -> SharedRows:
    """Join the rows of owners that hold the same columns (horizontal partition, Algorithm 11)."""
    return SharedRows(
        concatenate([part.features for part in parts], axis=2), concatenate([part.classes for part in parts], axis=1)
    )


def join_owner_columns(features: Sequence[Shared], classes: Shared) -> SharedRows:
    """Join the columns of owners that hold the same rows in the same order (vertical partition).

    Rows are matched by position: which rows belong together must be agreed before.
    """
    counts = {part.shape[-1] for part in [*features, classes]}
    if len(counts) > 1:
        raise UseError(
            f"owners of columns hold {', '.join(map(str, sorted(counts)))} rows. Hint: all must send the same rows "
            "in the same order."
        )
    return SharedRows(concatenate(features, axis=0), classes)


def are_one_hot(engine: Engine, features: Shared, domain: Domain) -> bool:
    """Whether every feature of every row has exactly one value, and no dummy value; reveals only the answer.

    In a ring of 2^k elements x (1 - x) = 0 has the roots 0 and 1 alone, because one of its factors is odd.

    Notes
    -----
    Guarantee

    One row then moves one count of each feature by one, which the sensitivities rest on (proofs/secure.md, attacked
    by packages/veilwood-secure/tests/protocols/test_records.py::test_rows_that_are_not_one_hot_are_refused).
    """
    if features.shape[:-1] != (domain.n_features, domain.width):
        return False
    bits = engine.mul(features, 1 - features)
    dummies = features[domain.dummy_mask]
    sums = features.sum(axis=1) - 1
    return engine.is_all_zero(concatenate([part.reshape(-1) for part in (bits, dummies, sums)], axis=0))


def are_valid_classes(engine: Engine, classes: Shared, domain: Domain) -> bool:
    """Whether every row has one class, or none (padding); reveals only the answer."""
    if classes.shape[:-1] != (domain.n_classes,):
        return False
    total = classes.sum(axis=0)
    cells = concatenate([classes.reshape(-1), total], axis=0)
    return engine.is_all_zero(engine.mul(cells, 1 - cells))


def may_be_summed(
    engine: Engine, sums: Shared, n_owners: int, histograms: Literal["counts", "moments"] | None = None
) -> bool:
    """Whether an owner's shares fit together, and its sums are such that nothing wraps around with those of others.

    Sums along three axes may be ``histograms``, which are held to what rows can have.
    """
    if not engine.is_consistent(sums):
        return False
    if histograms is not None and len(sums.shape) == 3:
        return are_valid_histograms(engine, sums, MAX_COUNT // n_owners, histograms)
    return are_bounded(engine, sums, MAX_TOTAL // (2 * n_owners * max(sums.size, 1)))


def are_valid_histograms(engine: Engine, histograms: Shared, max_rows: int, kind: Literal["counts", "moments"]) -> bool:
    """Whether each histogram of class counts, or of numbers, sums and squares, is one that ``max_rows`` rows can have.

    A cell's numbers are compared one after the other, each with a bound that the one before has passed, so that
    nothing wraps around: counts with ``max_rows``, sums with what so many rows can have, squares with sums.

    Notes
    -----
    Guarantee

    The spread of such cells, and how many rows are on either side, move by no more than the plan says when a row of
    another owner comes (proofs/secure-joint.md, attacked by
    packages/veilwood-secure/tests/protocols/test_joint_quotients.py::test_histograms_that_no_rows_have_are_refused).
    """
    if not histograms.size:  # a level whose nodes are all leaves
        return True
    counts, bounded = histograms, []
    if kind == "moments":
        counts, sums, squares = (histograms[..., place] for place in range(3))
        bounded = [sums, counts * TARGET_LEVELS - sums, squares, sums * TARGET_LEVELS - squares]
    totals = counts.reshape(counts.shape[0], -1).sum(axis=1)
    flat = [part.reshape(-1) for part in (counts, max_rows - counts, max_rows - totals, *bounded)]
    return engine.is_all_zero(engine.is_negative(concatenate(flat)).sum().reshape(1))


def are_bounded(engine: Engine, numbers: Shared, bound: int) -> bool:
    """Whether no number is beyond ``2 * bound``; numbers whose sizes add up to at most ``bound`` always pass.

    Coins that are tossed now put each number into a half of 80 sums. One that is too large makes at least one of two
    sums too large that differ by it alone, so that it passes with probability 2^-80 at most.

    Notes
    -----
    Guarantee

    Sums, sizes and maxima of what passes do not wrap around (proofs/secure-joint.md, attacked by
    packages/veilwood-secure/tests/protocols/test_joint_private_forest.py::test_numbers_that_would_wrap_around_are_refused).
    """
    row = -(-numbers.size // 8)
    drawn = hashlib.shake_256(engine.toss_coins(4).tobytes()).digest(N_SUBSETS * row)
    coins = np.frombuffer(drawn, np.uint8).reshape(N_SUBSETS, row)

    def subset_sums(part: NDArray[Any]) -> NDArray[Any]:
        flat = part.reshape(-1)
        chosen = (flat[np.unpackbits(each, count=flat.size).astype(bool)] for each in coins)
        return np.array([each.sum(dtype=flat.dtype) for each in chosen], flat.dtype)

    found = numbers.map_parts(subset_sums)
    beyond = engine.is_negative(concatenate([found + bound, bound - found]))
    return engine.is_all_zero(beyond.sum().reshape(1))
