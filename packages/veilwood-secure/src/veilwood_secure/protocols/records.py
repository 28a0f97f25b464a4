# SPDX-License-Identifier: Apache-2.0
"""One-hot rows in shares: encoding by owners, concatenation at servers, and validity checks on shares.

Shares are made in ``mpc.shares``; training on them is in ``hidden_trees``, ``public_trees`` and ``hidden_forest``.

| letter | meaning |
|---|---|
| n | rows |
| m | features |
| w | values of the largest feature; smaller features are padded with dummy values that never occur |
| u | classes |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from veilwood.arrays import AnyArray, ArrayLike, Bools, NDArray
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.errors import DomainTooLargeError, OutOfSchemaError, SchemaError, UseError
from veilwood_secure.mpc.engine import Engine, Shared, concatenate

OneHot = NDArray[np.uint8]

MAX_CELLS = 1 << 31
"""Maximum number of one-hot values of an encoded table: larger tables fit neither one message nor memory."""

MAX_COUNT: Final = 1 << 26
"""Maximum number of rows of all owners for histograms: all values computed from them then stay below 2^60."""

SPARE_BITS: Final = 4
"""Counted bits of a word that stay above the L1 norm of all other sums of a query, whatever owners send."""

N_SUBSETS = 80  # random subset sums per check: each misses a value that is too large with probability 1/2


@dataclass(frozen=True)
class Domain:
    """Public shape of rows: the number of values of each feature, and the number of classes.

    >>> Domain((3, 2), 2).width
    3
    """

    sizes: tuple[int, ...]
    n_classes: int

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.n_classes < 2:
            raise UseError(
                f"sizes={self.sizes}, n_classes={self.n_classes}: a domain needs at least one feature and two classes."
            )

    @classmethod
    def from_schema(cls, schema: Schema) -> Domain:
        """Return the domain of a schema: categories, and the bins of numeric columns."""
        if schema.task != "classification":
            raise SchemaError(
                f"schema {schema.name!r} is for {schema.task}, but secure trees predict classes. "
                "Hint: declare a categorical target."
            )
        return cls(Encoding(schema, "bins").n_codes, len(schema.classes))

    @property
    def n_features(self) -> int:
        """Number of features, m."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """Number of values of the largest feature, w."""
        return max(self.sizes)

    @property
    def dummy_mask(self) -> Bools:
        """Mask of the dummy values, shape (m, w)."""
        return np.arange(self.width) >= np.array(self.sizes)[:, None]


def encode_one_hot(codes: ArrayLike, domain: Domain) -> OneHot:
    """Return the one-hot codes of rows, shape (m, w, n), for an owner or a user to share.

    >>> encode_one_hot([[0, 1], [2, 0]], Domain((3, 2), 2))[:, :, 0].tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    values = np.asarray(codes)
    if values.ndim != 2 or values.shape[1] != domain.n_features:
        raise UseError(f"rows have shape {values.shape}, but the domain has {domain.n_features} features.")
    if values.size * domain.width > MAX_CELLS:
        raise DomainTooLargeError(f"{len(values)} rows are too many for one table. Hint: send them in parts.")
    if values.size and (values.min() < 0 or (values.max(axis=0) >= np.array(domain.sizes)).any()):
        raise OutOfSchemaError(f"a code lies outside the domain {domain.sizes}. Hint: encode rows by the schema.")
    return np.asarray(values.T[:, None, :] == np.arange(domain.width)[:, None], np.uint8)


def encode_classes(target: ArrayLike, domain: Domain) -> OneHot:
    """Return the one-hot classes of rows, shape (u, n). A row of class -1 is padding and is not counted.

    Padding up to a public number hides the number of rows of an owner.

    >>> encode_classes([1, 0, -1], Domain((3,), 2)).tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    classes = np.asarray(target)
    if classes.size and (classes.min() < -1 or classes.max() >= domain.n_classes):
        raise OutOfSchemaError(f"a class is outside 0 to {domain.n_classes - 1}. Hint: use -1 for padding.")
    return np.asarray(classes == np.arange(domain.n_classes)[:, None], np.uint8)


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
        """Number of rows that servers see, including padding."""
        return self.features.shape[-1]


def stack_owner_rows(parts: Sequence[SharedRows]) -> SharedRows:
    """Concatenate the rows of owners that hold the same columns (horizontal partition, Algorithm 11)."""
    return SharedRows(
        concatenate([part.features for part in parts], axis=2), concatenate([part.classes for part in parts], axis=1)
    )


def join_owner_columns(features: Sequence[Shared], classes: Shared) -> SharedRows:
    """Join the columns of owners that hold the same rows in the same order (vertical partition).

    Rows are matched by position, so owners must agree beforehand which rows belong together.
    """
    counts = {part.shape[-1] for part in [*features, classes]}
    if len(counts) > 1:
        raise UseError(
            f"owners of columns hold {', '.join(map(str, sorted(counts)))} rows. Hint: send the same rows in the same "
            "order from all owners."
        )
    return SharedRows(concatenate(features, axis=0), classes)


def are_one_hot(engine: Engine, features: Shared, domain: Domain) -> bool:
    """Return True if every feature of every row has exactly one value, and no dummy value. Reveals only the answer.

    In a ring of 2^k elements, x^2 = x has only the roots 0 and 1, because x or x - 1 is odd.

    Notes
    -----
    Guarantee

    A row then changes one count of each feature by one; the sensitivities rely on this (proofs/secure.md, attacked
    by packages/veilwood-secure/tests/protocols/test_records.py::test_rows_that_are_not_one_hot_are_refused).
    """
    if features.shape[:-1] != (domain.n_features, domain.width):
        return False
    dummies, sums = features[domain.dummy_mask], features.sum(axis=1) - 1
    holds = engine.products_hold(features, features, features)
    return engine.is_all_zero(concatenate([dummies.reshape(-1), sums.reshape(-1)])) and holds


def are_valid_classes(engine: Engine, classes: Shared, domain: Domain) -> bool:
    """Return True if every row has one class or, as padding, no class. Reveals only the answer."""
    if classes.shape[:-1] != (domain.n_classes,):
        return False
    cells = concatenate([classes.reshape(-1), classes.sum(axis=0)])
    return engine.products_hold(cells, cells, cells)


def may_be_summed(
    engine: Engine, sums: Shared, n_owners: int, histograms: Literal["counts", "moments"] | None = None
) -> bool:
    """Return True if an owner's shares are consistent, and its sums plus the other owners' sums cannot wrap around.

    Sums with three axes may be ``histograms``, which must be possible for some set of rows.
    """
    if not engine.is_consistent(sums):
        return False
    if histograms is not None and len(sums.shape) == 3:
        return are_valid_histograms(engine, sums, MAX_COUNT // n_owners, histograms)
    max_total = 1 << (engine.counted_bits - SPARE_BITS)
    return are_bounded(engine, sums, max_total // (2 * n_owners * max(sums.size, 1)))


def are_valid_histograms(engine: Engine, histograms: Shared, max_rows: int, kind: Literal["counts", "moments"]) -> bool:
    """Return True if each histogram (class counts, or counts, sums and squares) is possible for ``max_rows`` rows.

    Counts are bounded by ``max_rows``, sums by the counts, and squares by the sums. Each bound has been checked before
    it is used, so no comparison wraps around.

    Notes
    -----
    Guarantee

    When another owner adds a row, the squared error of such cells, and the number of rows on either side, change by at
    most the planned sensitivity (proofs/secure-joint.md, attacked by
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
    """Return True if no magnitude exceeds ``2 * bound``. Numbers with an L1 norm of at most ``bound`` always pass.

    Public coins, tossed after the numbers were shared, select each number into 80 subset sums with probability 1/2.
    If two sums differ by one number that is too large, at least one of the sums is too large. So such a number passes
    with probability at most 2^-80.

    Notes
    -----
    Guarantee

    Sums, magnitudes and maxima of numbers that pass do not wrap around (proofs/secure-joint.md, attacked by
    packages/veilwood-secure/tests/protocols/test_joint_private_forest.py::test_numbers_that_would_wrap_around_are_refused).
    """
    row = -(-numbers.size // 8)
    drawn = hashlib.shake_256(engine.toss_coins(4).tobytes()).digest(N_SUBSETS * row)
    coins = np.frombuffer(drawn, np.uint8).reshape(N_SUBSETS, row)

    def subset_sums(part: AnyArray) -> AnyArray:
        flat = part.reshape(-1)
        chosen = (flat[np.unpackbits(each, count=flat.size).astype(bool)] for each in coins)
        return np.array([each.sum(dtype=flat.dtype) for each in chosen], flat.dtype)

    sums = numbers.map_parts(subset_sums)
    too_large = engine.is_negative(concatenate([sums + bound, bound - sums]))
    return engine.is_all_zero(too_large.sum().reshape(1))
