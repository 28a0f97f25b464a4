# SPDX-License-Identifier: Apache-2.0
"""Strategies: integer measurements that answer a workload, with their sensitivity, reconstruction and expected error.

No noise is drawn here. ``search`` finds the best strategy.

Letters (those of ``workloads`` as well; Li et al. 2015 for the matrix mechanism, McKenna et al. 2018 for the
families of strategies):

========  =====================  ====================================================================
letter    name                   meaning
========  =====================  ====================================================================
A         strategy               integer matrix of the measurements A D; one row per measurement
S         marginal               a set of features; its table counts rows by their values of S
theta_S   weight                 integer weight of marginal S: its part of the budget
Var_S     variance               of the noise on each count of marginal S
lambda_R  precision              sum over S containing R of (product of n_i, i outside S) / Var_S
b         scale                  of discrete Laplace noise
========  =====================  ====================================================================

Only ``measure_exact`` and its variants read the data. The release door adds noise of the stated scales to the
measurements, and ``reconstruct`` gets only the noisy result. So a strategy that cannot answer a query would cause bias
but no loss of privacy. Such strategies are nevertheless rejected.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from veilwood.arrays import AnyArray, ArrayLike, Bools, Floats, Ints
from veilwood.data.batches import Batch
from veilwood.data.counts import CellQuery, CellRule, RunCellQueries, split_by_code
from veilwood.errors import MechanismError, OutOfSchemaError
from veilwood.forests.matrix.workloads import PathWorkload, Workload
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.trees.counting import leaf_queries, leaf_totals


class MarginalSource(ABC):
    """Source of exact counts of rows, one marginal table or forest at a time."""

    @abstractmethod
    def marginal_counts(self, features: tuple[int, ...]) -> Ints:
        """Return counts [*sizes, k] by the values of ``features``."""

    @abstractmethod
    def leaf_counts(self, workload: PathWorkload) -> Ints:
        """Return counts [leaves, k] of the leaves of a forest."""


class RowMarginals(MarginalSource):
    """Source of counts of rows in memory, without a table of the whole domain."""

    def __init__(self, codes: Ints, classes: Ints, n_classes: int, shape: tuple[int, ...], unmerged: AnyArray) -> None:
        self.codes, self.classes, self.n_classes, self.shape = codes, classes, n_classes, shape
        self.unmerged = unmerged

    def marginal_counts(self, features: tuple[int, ...]) -> Ints:
        """Count the rows by cell."""
        sizes = (*(self.shape[i] for i in features), self.n_classes)
        cell = np.zeros(len(self.codes), np.int64)
        for i in features:
            cell = cell * self.shape[i] + self.codes[:, i]
        counted = np.bincount(cell * self.n_classes + self.classes, minlength=math.prod(sizes))
        return counted.astype(np.int64).reshape(sizes)

    def leaf_counts(self, workload: PathWorkload) -> Ints:
        """Count the rows in the leaves."""
        assert workload.forest is not None
        rows = Batch(self.unmerged.astype(np.uint16), self.classes.astype(np.int32), partition=0, first_row=0)
        return leaf_totals(workload.forest, [rows], n_classes=self.n_classes)


class QueriedMarginals(MarginalSource):
    """Source of counts of rows in a database engine, by cell queries (``data.counts``).

    ``columns`` are the columns of the features, and ``maps`` merge their codes. Rows with a code that maps to -1 are
    not counted.
    """

    def __init__(
        self, answer: RunCellQueries, n_codes: Sequence[int], columns: Sequence[int], maps: Sequence[Ints],
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.run_queries, self.n_codes, self.columns, self.maps, self.shape = answer, n_codes, columns, maps, shape

    def marginal_counts(self, features: tuple[int, ...]) -> Ints:
        """Query the cells of a marginal."""
        parts, stride = [], math.prod(self.shape[i] for i in features)
        n_cells = stride
        for i in features:
            stride //= self.shape[i]
            parts.append(split_by_code(self.columns[i], np.where(self.maps[i] < 0, -1, self.maps[i] * stride)))
        (table,) = self.run_queries([CellQuery((*parts, *self._unmerged_rules(features)), n_cells)], "classes")
        return table.reshape(*(self.shape[i] for i in features), -1)

    def leaf_counts(self, workload: PathWorkload) -> Ints:
        """Query the leaves of each tree."""
        forest = workload.forest
        assert forest is not None
        queries = leaf_queries(forest, self.n_codes, self.columns, self._unmerged_rules(()))
        return np.concatenate(self.run_queries(queries, "classes"))

    def _unmerged_rules(self, features: tuple[int, ...]) -> list[CellRule]:
        """Return rules that exclude rows whose codes of other features map to -1."""
        return [
            split_by_code(self.columns[i], np.where(to < 0, -1, 0))
            for i, to in enumerate(self.maps)
            if i not in features and (to < 0).any()
        ]


class TableMarginals(MarginalSource):
    """Source of counts from a table of all cells."""

    def __init__(self, cells: Ints) -> None:
        self.cells = cells

    def marginal_counts(self, features: tuple[int, ...]) -> Ints:
        """Sum over the other features."""
        others = tuple(i for i in range(self.cells.ndim - 1) if i not in features)
        summed: Ints = self.cells.sum(axis=others)
        return summed

    def leaf_counts(self, workload: PathWorkload) -> Ints:
        """Sum the cells of each leaf."""
        return np.rint(workload.answer_cells(self.cells.astype(float))).astype(np.int64)


NoiseName = Literal["laplace", "gaussian"]

# Limits on a factor's columns, and on the entries of a product of factors. Sums of columns and their squares are then
# exact, and counts times entries approach the limit of an int64 only for tables that the door rejects.
_MAX_COLUMN, _MAX_ENTRY = 1 << 20, 1 << 40
_MIN_VARIANCE = 1e-200  # keeps precisions finite when epsilon is so large that the noise is surely zero


class Strategy(ABC):
    """Base class of strategies: integer measurements of a table over a product domain.

    Attributes
    ----------
    sizes, maps, shape
        The domain, as in :class:`veilwood.forests.matrix.workloads.Workload`.
    tables : tuple of tuple of int
        Shape of each measured table, without the class axis.
    l1, l2_squared : int
        Largest column sum and largest column sum of squares of the integer strategy A.

    Notes
    -----
    Guarantee: adding or removing one row changes one cell by one in one class column, hence A D by one column of A.
    Noise of ``laplace_scales(epsilon)`` is epsilon-differentially private, and noise of ``sigma_squared(rho)`` is
    rho-zCDP, under add-remove of one row. For another unit or adjacency, divide the budget first.
    """

    sizes: tuple[int, ...]
    maps: tuple[Ints, ...]
    shape: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    l1: int
    l2_squared: int
    name: str

    @abstractmethod
    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        """Return the scale of the discrete Laplace noise of each table, for a total of ``epsilon``."""

    @abstractmethod
    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Return the parameter of the discrete Gaussian noise of each table, for a total of ``rho``."""

    @abstractmethod
    def table_sensitivities(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """Return, per table, its fraction of the budget, and the L1 and squared L2 norm of one row's contribution."""

    @abstractmethod
    def _measure_counts(self, counts: MarginalSource) -> list[Ints]:
        """Return the exact measurements from counts."""

    @abstractmethod
    def _estimate_answers(self, noisy: Sequence[Floats], workload: Workload, variances: Sequence[float]) -> Floats:
        """Return the least-squares answers."""

    @abstractmethod
    def _total_variance(self, workload: Workload, variances: Sequence[float]) -> float:
        """Return the total variance of the least-squares answers."""

    def noise_variances(self, noise: NoiseName, budget: Fraction) -> list[float]:
        """Return the exact variance of the noise on each table; ``budget`` is epsilon (Laplace) or rho (Gaussian)."""
        if budget <= 0:
            raise MechanismError(f"budget is {budget}. Hint: pass a positive epsilon (laplace) or rho (gaussian).")
        parameters = self.laplace_scales(budget) if noise == "laplace" else self.sigma_squared(budget)
        return [noise_variance(noise, parameter) for parameter in parameters]

    def can_answer(self, workload: Workload) -> bool:
        """Return True if every query is a linear combination of the measurements: W A^+ A = W."""
        return self._same_domain(workload)

    def measure_exact(self, codes: ArrayLike, classes: ArrayLike, n_classes: int) -> list[Ints]:
        """Return the exact measurements of rows: private until noise is added.

        Parameters
        ----------
        codes : array_like of int, [rows, features]
            Encoded values, in ``0 .. sizes[i] - 1``.
        classes : array_like of int, [rows]
            Class of each row, in ``0 .. n_classes - 1``.
        n_classes : int
            Number of classes k.

        Returns
        -------
        list of int64 arrays, [*table, k]
            Measurements of batches add up to those of all rows.
        """
        values, labels = np.asarray(codes), np.asarray(classes)
        if values.ndim != 2 or values.shape != (len(labels), len(self.sizes)):
            raise OutOfSchemaError(
                f"codes has shape {values.shape} for {len(labels)} classes and {len(self.sizes)} features. "
                "Hint: pass codes as [rows, features], with one class per row."
            )
        for i, size in enumerate((*self.sizes, n_classes)):
            column = labels if i == len(self.sizes) else values[:, i]
            if len(column) and (column.min() < 0 or column.max() >= size):
                what = "classes" if i == len(self.sizes) else f"feature {i}"
                raise OutOfSchemaError(f"a code of {what} is outside 0 to {size - 1}.", column=what)
        merged = np.stack([to[values[:, i]] for i, to in enumerate(self.maps)], axis=1)
        seen = (merged >= 0).all(axis=1)
        return self._measure_counts(
            RowMarginals(merged[seen], labels[seen].astype(np.int64), n_classes, self.shape, values[seen])
        )

    def measure_queried(self, answer: RunCellQueries, n_codes: Sequence[int], columns: Sequence[int]) -> list[Ints]:
        """Return the exact measurements of rows in a database engine; ``columns`` are the columns of the features."""
        return self._measure_counts(QueriedMarginals(answer, n_codes, columns, self.maps, self.shape))

    def measure_cells(self, cells: ArrayLike) -> list[Ints]:
        """Return the exact measurements from an integer table [*sizes, k] of counts or votes."""
        table = np.asarray(cells)
        if table.shape[:-1] != self.sizes or table.dtype.kind not in "iu":
            raise OutOfSchemaError(
                f"cells is {table.dtype} of shape {table.shape}. Hint: pass integers of shape {(*self.sizes, 'k')}."
            )
        table = table.astype(np.int64)
        for i, (to, size) in enumerate(zip(self.maps, self.shape, strict=True)):
            if not np.array_equal(to, np.arange(size)):
                moved = np.moveaxis(table, i, 0)
                summed = np.zeros((size, *moved.shape[1:]), np.int64)
                np.add.at(summed, to[to >= 0], moved[to >= 0])
                table = np.moveaxis(summed, 0, i)
        return self._measure_counts(TableMarginals(table))

    def reconstruct(
        self,
        measured: Sequence[ArrayLike],
        workload: Workload,
        noise: NoiseName = "laplace",
        budget: Fraction = Fraction(1),
    ) -> Floats:
        """Return answers [queries, k] from noisy measurements: unbiased least squares, post-processing only."""
        self._check_answerable(workload)
        return self._estimate_answers(
            [np.asarray(y, float) for y in measured], workload, self.noise_variances(noise, budget)
        )

    def _same_domain(self, workload: Workload) -> bool:
        same = self.sizes == workload.sizes and self.shape == workload.shape
        return same and all(map(np.array_equal, self.maps, workload.maps))

    def _check_answerable(self, workload: Workload) -> None:
        if not self.can_answer(workload):
            raise MechanismError(
                f"this {self.name} strategy cannot answer the workload without bias. "
                "Hint: optimise a strategy for this workload, or use Marginals.identity."
            )

    def __repr__(self) -> str:
        cells = sum(math.prod(table) for table in self.tables)
        return f"<{self.name}: {len(self.tables)} tables, {cells} counts per class>"


class Marginals(Strategy):
    """Strategy of weighted marginals: tables of some sets of features, each with its own fraction of the budget.

    The tables are measured as plain counts, marginal S with noise of scale (sum theta) / (theta_S epsilon). This is the
    same as measuring theta_S times the table with noise of scale (sum theta) / epsilon, on a finer grid of integers.

    Parameters
    ----------
    workload : Workload
        Gives the domain.
    weights : dict
        Positive integer weight of each marginal, by tuple of features.

    Examples
    --------
    >>> T = PathWorkload.from_leaves((3, 2), [[0], [0], [0], [1], [1]], [[0], [1], [2], [0], [1]])
    >>> both = Marginals(T, {(0,): 1, (1,): 1})
    >>> both.laplace_scales(Fraction(1, 2))
    [Fraction(4, 1), Fraction(4, 1)]
    >>> both.measure_exact([[2, 0], [1, 1], [2, 1]], [0, 0, 0], 1)[0].tolist()
    [[0], [1], [2]]
    """

    name = "weighted marginals"

    def __init__(self, workload: Workload, weights: dict[tuple[int, ...], int]) -> None:
        self.sizes, self.maps, self.shape = workload.sizes, workload.maps, workload.shape
        for features, weight in weights.items():
            if int(weight) != weight or weight < 1 or tuple(sorted(set(features))) != features:
                raise MechanismError(
                    f"weight of marginal {features} is {weight}. Hint: pass sorted features and positive integers."
                )
        self.weights = {tuple(int(i) for i in features): int(weight) for features, weight in weights.items()}
        self.tables = tuple(tuple(self.shape[i] for i in features) for features in self.weights)
        self.l1 = sum(self.weights.values())
        self.l2_squared = sum(weight**2 for weight in self.weights.values())
        if list(self.weights) == [tuple(range(len(self.shape)))]:
            self.name = "identity"

    @classmethod
    def identity(cls, workload: Workload) -> Marginals:
        """Return the strategy that measures the whole (merged) contingency table."""
        return cls(workload, {tuple(range(len(workload.shape))): 1})

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        """Return the scale (sum theta) / (theta_S epsilon) of each table."""
        return [Fraction(self.l1, weight) / epsilon for weight in self.weights.values()]

    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Return the parameter (sum theta^2) / (2 theta_S^2 rho) of each table."""
        return [Fraction(self.l2_squared, 2 * weight**2) / rho for weight in self.weights.values()]

    def table_sensitivities(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """Return fractions by weight (Gaussian: squared weight). One row adds 1 to one count per table."""
        total = self.l1 if noise == "laplace" else self.l2_squared
        power = 1 if noise == "laplace" else 2
        return [(Fraction(weight**power, total), 1, 1) for weight in self.weights.values()]

    def can_answer(self, workload: Workload) -> bool:
        """Return True if every residual space that a query depends on is measured by some marginal."""
        return self._same_domain(workload) and bool(self._is_measured(nonzero_spaces(workload.residual_traces)).all())

    @cached_property
    def _table_masks(self) -> Ints:
        return np.array([sum(1 << i for i in features) for features in self.weights], np.int64)

    def _is_measured(self, spaces: Ints) -> Bools:
        return np.array([((self._table_masks & space) == space).any() for space in spaces])

    def _measure_counts(self, counts: MarginalSource) -> list[Ints]:
        return [counts.marginal_counts(features) for features in self.weights]

    def space_precisions(self, spaces: Ints, variances: Sequence[float]) -> Floats:
        """Return lambda_R of each residual space; 0 if no marginal measures it."""
        cells = math.prod(self.shape)
        each = np.array(
            [
                cells / math.prod(self.shape[i] for i in features) / variance
                for features, variance in zip(self.weights, variances, strict=True)
            ]
        )
        precisions: Floats = np.array([each[(self._table_masks & space) == space].sum() for space in spaces])
        return precisions

    def _total_variance(self, workload: Workload, variances: Sequence[float]) -> float:
        traces = workload.residual_traces
        spaces = nonzero_spaces(traces)
        seen = np.array([traces[int(space)] for space in spaces])
        return float((seen / self.space_precisions(spaces, variances)).sum())

    def _estimate_answers(self, noisy: Sequence[Floats], workload: Workload, variances: Sequence[float]) -> Floats:
        parts = self._estimate_residuals(noisy, {int(space) for space in workload.residual_traces}, variances)

        def marginal_of(features: tuple[int, ...]) -> Floats:
            total = np.zeros((*(self.shape[i] for i in features), noisy[0].shape[-1]))
            inside = sum(1 << i for i in features)
            for space, part in parts.items():
                if space & inside == space:
                    outer = math.prod(self.shape[i] for i in features if not space >> i & 1)
                    spread = tuple(self.shape[i] if space >> i & 1 else 1 for i in features)
                    total += part.reshape(*spread, -1) / outer
            return total

        return workload.answer_marginals(marginal_of)

    def _estimate_residuals(
        self, noisy: Sequence[Floats], spaces: set[int], variances: Sequence[float]
    ) -> dict[int, Floats]:
        """Return the best estimate of each residual table: the centred, precision-weighted mean of its supersets.

        The table of R from marginal S has variance Var_S times the number of cells summed. Up to a factor that depends
        on R alone, its weight is 1 / (Var_S cells(S)). This is the same for every R, so sums can be shared.
        """
        sums: dict[int, Floats] = {}
        weights: dict[int, float] = {}

        def collect_sums(table: Floats, rest: tuple[int, ...], kept: int, weight: float) -> None:
            if not rest:
                sums[kept] = sums[kept] + table if kept in sums else table
                weights[kept] = weights.get(kept, 0.0) + weight
                return
            axis = kept.bit_count()
            collect_sums(table.sum(axis=axis), rest[1:], kept, weight)
            if kept | 1 << rest[0] in spaces:  # ``spaces`` is downward closed
                collect_sums(table, rest[1:], kept | 1 << rest[0], weight)

        for features, table, variance in zip(self.weights, noisy, variances, strict=True):
            weight = 1 / (variance * math.prod(self.shape[i] for i in features))
            collect_sums(table * weight, features, 0, weight)
        parts = {}
        for space, table in sums.items():
            part = table / weights[space]
            for axis in range(space.bit_count()):
                part = part - part.mean(axis=axis, keepdims=True)
            parts[space] = part
        return parts


class Factors(Strategy):
    """Explicit strategy: a p-Identity matrix over all cells, or a Kronecker product of one such matrix per feature.

    Each factor is a diagonal matrix above p more rows of non-negative integers (McKenna et al. 2018, section 5.2).
    The positive diagonal gives it full rank, and the inverse of its Gram matrix a closed form of rank p.

    Parameters
    ----------
    workload : Workload
        Gives the domain.
    factors : sequence of int arrays
        Either one, [n + p, n] over the flattened merged domain, or one per feature, [n_i + p_i, n_i].
    """

    def __init__(self, workload: Workload, factors: Sequence[ArrayLike]) -> None:
        self.sizes, self.maps, self.shape = workload.sizes, workload.maps, workload.shape
        self.factors = tuple(np.asarray(factor, np.int64) for factor in factors)
        columns = tuple(factor.shape[1] for factor in self.factors)
        if columns not in ((workload.n_cells,), self.shape):
            raise MechanismError(f"factors have {columns} columns. Hint: {workload.n_cells} cells or {self.shape}.")
        for factor in self.factors:
            n = factor.shape[1]
            square = factor[:n]
            if (
                len(factor) < n
                or (factor < 0).any()
                or (np.diag(square) < 1).any()
                or (square != np.diag(np.diag(square))).any()
            ):
                raise MechanismError("a factor must be a positive diagonal above non-negative rows.")
            if (factor > _MAX_COLUMN).any() or (factor.sum(axis=0) > _MAX_COLUMN).any():
                raise MechanismError(f"a column of a factor sums to more than {_MAX_COLUMN:,}.")
        if math.prod(int(factor.max()) for factor in self.factors) > _MAX_ENTRY:
            raise MechanismError(f"an entry of a product of factors is above {_MAX_ENTRY:,}.")
        self.name = "p-identity" if len(columns) == 1 else "kronecker p-identity"
        self.tables = (tuple(len(factor) for factor in self.factors),)
        self.l1 = math.prod(int(factor.sum(axis=0).max()) for factor in self.factors)
        self.l2_squared = math.prod(int((factor**2).sum(axis=0).max()) for factor in self.factors)

    def laplace_scales(self, epsilon: Fraction) -> list[Fraction]:
        """Return the scale (largest column sum) / epsilon."""
        return [self.l1 / Fraction(epsilon)]

    def sigma_squared(self, rho: Fraction) -> list[Fraction]:
        """Return the parameter (largest column sum of squares) / (2 rho)."""
        return [Fraction(self.l2_squared, 2) / rho]

    def table_sensitivities(self, noise: NoiseName) -> list[tuple[Fraction, int, int]]:
        """Return the norms of the largest column of A: one row adds a column of A to the only table."""
        return [(Fraction(1), self.l1, self.l2_squared)]

    def _measure_counts(self, counts: MarginalSource) -> list[Ints]:
        table = counts.marginal_counts(tuple(range(len(self.shape))))
        table = table.reshape(*(factor.shape[1] for factor in self.factors), -1)
        for axis, factor in enumerate(self.factors):
            table = _multiply_axis(factor, table, axis)
        return [table]

    @cached_property
    def gram_inverses(self) -> tuple[Floats, ...]:
        """The matrix (A_i' A_i)^-1 of each factor, by Woodbury's identity."""
        inverses = []
        for factor in self.factors:
            n = factor.shape[1]
            inverse = 1.0 / np.diag(factor[:n])
            rows = factor[n:] * inverse
            low = np.linalg.solve(np.eye(len(rows)) + rows @ rows.T, rows)
            inverses.append((np.eye(n) - rows.T @ low) * np.outer(inverse, inverse))
        return tuple(inverses)

    def _estimate_answers(self, noisy: Sequence[Floats], workload: Workload, variances: Sequence[float]) -> Floats:
        table = noisy[0]
        for axis, (factor, inverse) in enumerate(zip(self.factors, self.gram_inverses, strict=True)):
            table = _multiply_axis(inverse, _multiply_axis(factor.T.astype(float), table, axis), axis)
        return workload.answer_cells(table.reshape(*self.shape, -1))

    def _total_variance(self, workload: Workload, variances: Sequence[float]) -> float:
        if len(self.factors) == 1:
            return variances[0] * float((self.gram_inverses[0] * workload.gram_matrix()).sum())
        if isinstance(workload, PathWorkload):
            return variances[0] * float(np.prod(workload.quadratic_forms(self.gram_inverses), axis=0).sum())
        total = 0.0
        for rows in workload.iter_rows(merged=True):
            table = spread = rows.reshape(-1, *self.shape)
            for axis, inverse in enumerate(self.gram_inverses):
                spread = _multiply_axis(inverse, spread, axis + 1)
            total += float((table * spread).sum())
        return variances[0] * total


def expected_error(
    workload: Workload, strategy: Strategy, noise: NoiseName = "laplace", budget: Fraction = Fraction(1)
) -> float:
    """Return the expected total squared error of the answers in one class column, without data.

    Parameters
    ----------
    workload : Workload
        The queries.
    strategy : Strategy
        The measurements. Raises ``MechanismError`` if they cannot answer the workload.
    noise : {"laplace", "gaussian"}
        Kind of noise, with the variance of the exact discrete distribution.
    budget : Fraction
        epsilon for Laplace noise, rho for Gaussian noise.

    Examples
    --------
    >>> T = PathWorkload.from_leaves((3, 2), [[0], [0], [0], [1], [1]], [[0], [1], [2], [0], [1]])
    >>> identity = Marginals.identity(T)
    >>> round(expected_error(T, identity, budget=Fraction(1, 100)), -2)    # 2 trees x 6 cells x 2 / epsilon^2
    240000.0
    """
    strategy._check_answerable(workload)
    return strategy._total_variance(workload, strategy.noise_variances(noise, budget))


def noise_variance(noise: NoiseName, parameter: Fraction) -> float:
    """Return the exact variance of discrete noise; ``parameter`` is the scale (Laplace) or sigma squared (Gaussian)."""
    mechanism = DiscreteLaplace(parameter) if noise == "laplace" else DiscreteGaussian(parameter)
    return max(mechanism.variance, _MIN_VARIANCE)


def _multiply_axis(matrix: AnyArray, table: AnyArray, axis: int) -> AnyArray:
    """Return a table with one axis multiplied by a matrix."""
    return np.moveaxis(np.tensordot(matrix, table, axes=(1, axis)), 0, axis)


def nonzero_spaces(traces: dict[int, float]) -> Ints:
    """Return the residual spaces on which a query depends; very small traces are rounding errors."""
    threshold = 1e-12 * max(traces.values())
    return np.array([space for space, trace in traces.items() if trace > threshold], np.int64)
