# SPDX-License-Identifier: Apache-2.0
"""Counts of far more cells than can be listed, nearly all of them empty: noise on those that are not, and chance finds.

Like ``mechanisms``, it derives no sensitivity and charges nothing. After Cormode, Procopiuc, Srivastava and Tran (2012,
"Differentially private summaries for sparse data"), with laws that are sampled exactly.

| letter | meaning |
|---|---|
| a | exp(-1/scale): the ratio of the noise |
| g | ``gap``, a whole number of at most 1/a: an empty cell turns up with probability 1 - exp(-1/g) |
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import MechanismError
from veilwood.privacy import samplers
from veilwood.privacy.noise import LARGEST_SCALE, LARGEST_VALUE, DiscreteLaplace

__all__ = ["LARGEST_SPARSE_SCALE", "MOST_SPARSE_CELLS", "SparseLaplace"]

Ints = NDArray[np.int64]

MOST_SPARSE_CELLS: Final = 1 << 53
LARGEST_SPARSE_SCALE: Final = 4  # from 5 on, empty cells would be released too often beside those of one row
_BITS: Final = 128  # of exp(-1/scale), rounded up


@dataclass(frozen=True, init=False)
class SparseLaplace:
    """Noise on a huge table of counts, of which only the cells with a positive noisy count are released.

    A cell with rows gets discrete Laplace noise. An empty one is released with a small probability, as if it had
    one row or more; which ones do is drawn without visiting the others.

    Parameters
    ----------
    scale
        Positive integer or ``Fraction``, at most 4. For epsilon at L1 sensitivity s it is s/epsilon.

    Notes
    -----
    Guarantee

    Neighbours: tables of counts that differ by at most s in L1 norm.
    Bound: that of ``DiscreteLaplace``, epsilon = s/scale, though whether a cell is released depends on its count.
    Proof: proofs/sparse-counts.md
    Test: tests/privacy/test_sparse_noise.py::test_loss_is_the_bound_and_attains_it

    Examples
    --------
    >>> from fractions import Fraction
    >>> noise = SparseLaplace(Fraction(1, 20))
    >>> noise.epsilon(l1_sensitivity=1)
    Fraction(20, 1)
    >>> noise.gap
    485165195
    >>> cells, counts = noise.perturb(np.array([3, 10**9]), np.array([5, 700]), 10**10)
    >>> bool(set([3, 10**9]) <= set(cells.tolist()))
    True
    """

    scale: Fraction

    def __init__(self, scale: Fraction | int) -> None:
        object.__setattr__(self, "scale", DiscreteLaplace(scale).scale)
        if self.scale > LARGEST_SPARSE_SCALE:
            raise MechanismError(
                f"scale must be at most {LARGEST_SPARSE_SCALE}, got {scale}: with so much noise most empty cells "
                "turn up. Hint: list fewer cells and add noise to every one, or raise epsilon."
            )

    @property
    def gap(self) -> int:
        """About how many empty cells one chance find stands for: exp(1/scale), rounded down."""
        _, above = samplers.exp_minus(1 / self.scale, _BITS)
        return min((1 << _BITS) // above, LARGEST_SCALE)

    def epsilon(self, l1_sensitivity: Fraction | int) -> Fraction:
        """Return the epsilon that this noise costs at the given L1 sensitivity."""
        return DiscreteLaplace(self.scale).epsilon(l1_sensitivity)

    @property
    def variance(self) -> float:
        """Exact variance of the noise on a cell of many rows."""
        return DiscreteLaplace(self.scale).variance

    def law(self, count: int, up_to: int) -> NDArray[np.float64]:
        """Return the probabilities that a cell with ``count`` rows comes out as 0 (not at all), 1, ..., ``up_to``."""
        a = exp(-1 / self.scale)
        values = np.arange(1, up_to + 1)
        if count == 0:
            return np.append(exp(-1 / self.gap), -expm1(-1 / self.gap) * (1 - a) * a ** (values - 1.0))
        return np.append(a**count / (1 + a), (1 - a) / (1 + a) * a ** np.abs(values - float(count)))

    def perturb(self, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Return the cells that are released, in ascending order, and their noisy counts, which are positive.

        Parameters
        ----------
        cells, counts
            Different cells from 0 to ``n_cells`` - 1 with their counts, at least 1 each; all others are empty.
        n_cells
            Public: how many cells there are, at most 2**53.
        """
        if not 0 < n_cells <= MOST_SPARSE_CELLS:
            raise MechanismError(f"n_cells={n_cells} must be between 1 and 2**53. Hint: use coarser cells.")
        if cells.dtype != np.int64 or counts.dtype != np.int64 or cells.ndim != 1 or cells.shape != counts.shape:
            raise MechanismError("cells and counts must be int64 vectors of one length. Hint: count in whole units.")
        if (cells[:-1] > cells[1:]).any():
            order = np.argsort(cells)
            cells, counts = cells[order], counts[order]
        if len(cells) and (cells[0] < 0 or cells[-1] >= n_cells or (cells[:-1] == cells[1:]).any()):
            raise MechanismError(f"cells must be different numbers from 0 up to {n_cells - 1}.")
        if len(counts) and (counts.min() < 1 or counts.max() > LARGEST_VALUE):
            raise MechanismError("counts must be at least 1 and at most 2**61: leave empty cells out.")
        noisy = DiscreteLaplace(self.scale).sample(counts.shape)
        noisy += counts
        found = self._chance_finds(n_cells)
        taken = np.append(cells, -1)[np.searchsorted(cells, found)] == found  # cells ascend
        found = found[~taken]
        found_counts = 1 + samplers.geometric(self.scale, len(found))
        out = noisy > 0
        cells, noisy = cells[out], noisy[out]
        places = np.searchsorted(cells, found)  # ascending again: the order must not tell which were not empty
        return np.insert(cells, places, found), np.insert(noisy, places, found_counts)

    def _chance_finds(self, n_cells: int) -> Ints:
        """Choose each cell with probability 1 - exp(-1/g): the gaps between chosen ones are geometric of scale g."""
        gap, last, parts = Fraction(self.gap), -1, []
        most = max(1, (1 << 62) // (n_cells + 1))  # so many gaps, none counted beyond the end, cannot overflow
        while last < n_cells:
            expected = (n_cells - last) / float(gap)
            gaps = samplers.geometric(gap, min(most, int(expected + 4 * expected**0.5) + 8))
            places = last + np.cumsum(np.minimum(gaps, n_cells) + 1)
            parts.append(places[places < n_cells])
            last = int(places[-1])
        return np.concatenate(parts)
