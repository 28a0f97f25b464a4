# SPDX-License-Identifier: Apache-2.0
"""Matrix factorisations for a series of releases: one privacy loss for all, with less noise than splitting it.

Release t of a series needs the counts of all rows of periods 1 to t: the workload is P, the lower triangular matrix of
ones. With P = B C and C lower triangular, release t measures row t of C once, with fresh noise, and estimates the
counts by row t of B and all measurements so far (Denisov et al. 2022; the Toeplitz square root of P is that of
Fichtenberger, Henzinger and Upadhyay 2023). A row of period s touches the measurements by column s of C. The weights
in C are rounded to integers that are not negative, so that norms of columns, and with them the noise, are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, isqrt
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from veilwood.arrays import Floats, Ints
from veilwood.errors import MechanismError, ParameterError, PlanError
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Mechanism
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step, StepKind
from veilwood.safe_io import all_ints_in, is_int_in

MAX_RELEASES: Final = 104  # two years of weeks
GRID: Final = 1 << 12  # weights are rounded to multiples of 1 / GRID; that changes no variance by more than .1 %
ROUNDING_VARIANCE: Final = 1 / 12  # estimates are rounded to integers, as all counts are
MAX_ITERATIONS: Final = 2000
MIN_SHARED_WEIGHT: Final = 0.25  # of lost periods in the next release, relative to the full weight
BANDED_EXCESS: Final = (
    1.1  # the default number of bands is the smallest whose error is at most this multiple of the best
)

FactorName: TypeAlias = Literal["toeplitz", "banded", "optimized", "splitting"]
Objective: TypeAlias = Literal["largest", "mean"]
MakePlan: TypeAlias = Callable[[Loss, dict[str, Any]], Plan]
STRATEGIES: Final[tuple[FactorName, ...]] = ("optimized", "banded", "toeplitz", "splitting")  # ties go to the first
OBJECTIVES: Final[tuple[Objective, ...]] = ("largest", "mean")


@dataclass(frozen=True)
class TimeFactor:
    """Integer weights of periods in the measurements of a series, and the estimates that follow.

    Parameters
    ----------
    weights : tuple of tuple of int
        Rows of the lower triangular matrix C: ``weights[t][s]`` is the weight of period s in measurement t, from 0.
    lost : tuple of int
        Releases, numbered from 1, that a crash has left without a measurement. Their rows and those of the next release
        are counted together from then on, with the weights of the first of these periods. If these are too small, as
        where every period is measured once, the rows of a lost release are not counted again. Either way, what a row
        adds stays a part of one column.

    Notes
    -----
    Guarantee

    A row adds to all measurements of a series, together, at most ``norm`` times what it adds to one count
    (proofs/release-series.md, attacked by
    packages/veilwood/tests/privacy/test_time_factors.py::test_sensitivity_by_enumeration).

    Examples
    --------
    >>> factor = TimeFactor(((8,), (4, 8), (3, 4, 8)))
    >>> factor.norm(squared=True), factor.norm(squared=False)
    (89, 15)
    >>> factor.coefficients(2).tolist()  # m1 = 8 x1 and m2 = 4 x1 + 8 x2: x1 + x2 = m1 / 16 + m2 / 8
    [0.0625, 0.125]
    """

    weights: tuple[tuple[int, ...], ...]
    lost: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rows = self.weights
        if not 1 <= len(rows) <= MAX_RELEASES or [len(row) for row in rows] != [*range(1, len(rows) + 1)]:
            raise MechanismError(f"a factor must have 1 to {MAX_RELEASES} rows, of 1, 2, 3, ... weights.")
        if not all(all_ints_in(row, 0, 1 << 30) and row[-1] for row in rows):
            raise MechanismError("weights must be integers that are not negative, and positive on the diagonal.")
        if list(self.lost) != sorted(set(self.lost)) or not all_ints_in(self.lost, 1, len(rows)):
            raise MechanismError("lost releases must be different numbers of releases, ascending.")

    @classmethod
    def from_matrix(cls, matrix: Floats) -> Self:
        """Round a lower triangular matrix to the grid of integers."""
        rows = np.rint(GRID * matrix / matrix.max()).astype(np.int64)
        return cls(tuple(tuple(int(weight) for weight in row[: place + 1]) for place, row in enumerate(rows)))

    @property
    def releases(self) -> int:
        """Number of releases, T."""
        return len(self.weights)

    def norm(self, *, squared: bool) -> int:
        """Return the largest L1 norm of a column, or the largest squared L2 norm."""
        columns = np.zeros((self.releases, self.releases), object)
        for place, row in enumerate(self.weights):
            columns[place, : place + 1] = [weight**2 if squared else weight for weight in row]
        return int(columns.sum(axis=0).max())

    def period_weights(self, release: int) -> tuple[int, ...]:
        """Return the weight of every period in the measurement of a release; later periods have 0."""
        if not 1 <= release <= self.releases or release in self.lost:
            raise MechanismError(f"release {release} of this series has no measurement.")
        return tuple(self._weight(release, period) for period in range(1, self.releases + 1))

    def _weight(self, release: int, period: int) -> int:
        first, last = period, period  # of the periods that are counted together with this one
        while first - 1 in self.lost:
            first -= 1
        while last in self.lost:
            last += 1
        if period > release or last > release:
            return 0
        # Once rows have been measured apart, they stay apart: no row changes its column.
        steps = (self.weights[number - 1] for number in range(first + 1, last + 1))
        if all(row[first - 1] >= MIN_SHARED_WEIGHT * row[-1] for row in steps):
            return self.weights[release - 1][first - 1]
        return self.weights[release - 1][period - 1] if period == last else 0

    def measured(self, release: int) -> list[int]:
        """Return the releases up to this one that have a measurement."""
        return [number for number in range(1, release + 1) if number not in self.lost]

    def coefficients(self, release: int) -> Floats:
        """Return row ``release`` of B: the coefficient of each measurement in the estimate, in order of release."""
        measured = self.measured(release)
        if not measured or measured[-1] != release:
            raise MechanismError(f"release {release} of this series has no measurement.")
        return _estimation_matrix(self)[len(measured) - 1, : len(measured)]

    def variance_factor(self, release: int) -> float:
        """Return the variance of the estimate of one count, relative to that of the noise on one measurement."""
        return float((self.coefficients(release) ** 2).sum())

    def error(self, objective: Objective, *, squared: bool) -> float:
        """Return the largest or mean variance of the estimates, relative to that of a single release at the same loss.

        ``squared`` selects Gaussian noise under zCDP; otherwise Laplace noise under pure epsilon.
        """
        factors = [self.variance_factor(number) for number in self.measured(self.releases)]
        norm = self.norm(squared=True) if squared else self.norm(squared=False) ** 2
        return norm * (max(factors) if objective == "largest" else sum(factors) / len(factors))

    def rounding_variance(self, release: int) -> float:
        """Return the variance that rounding estimates to integers adds: 0 if they are integers already."""
        coefficients = self.coefficients(release)
        return 0.0 if np.array_equal(coefficients, np.rint(coefficients)) else ROUNDING_VARIANCE

    def to_dict(self) -> dict[str, str]:
        """Return the weights as text, one row after the other."""
        return {
            "weights": "; ".join(" ".join(map(str, row)) for row in self.weights),
            "lost": " ".join(map(str, self.lost)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> TimeFactor:
        """Read what ``to_dict`` wrote."""
        rows = data["weights"].split("; ", MAX_RELEASES)
        return cls(
            tuple(tuple(int(number[:12]) for number in row.split(" ", MAX_RELEASES)) for row in rows),
            tuple(int(number[:12]) for number in data["lost"].split()[:MAX_RELEASES]),
        )


@lru_cache(maxsize=256)
def _estimation_matrix(factor: TimeFactor) -> Floats:
    """Return B, with one row and one column per measurement. Periods that are counted together share a column of C."""
    measured = factor.measured(factor.releases)
    weights = np.array([factor.period_weights(number) for number in measured], np.float64)
    own = weights[:, [number - 1 for number in measured]]
    return np.asarray(solve_triangular(own, np.tril(np.ones(own.shape)).T, trans="T", lower=True).T)


# -- factors -----------------------------------------------------------------------------------------------------------


def toeplitz(first_column: Floats) -> Floats:
    """Return the lower triangular Toeplitz matrix with this first column.

    >>> toeplitz(np.array([2.0, 1.0])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    place = np.arange(len(first_column))
    return np.tril(first_column[np.abs(place[:, None] - place)])


def square_root_weights(releases: int) -> Floats:
    """Return the first column of the Toeplitz square root of P: binom(2k, k) / 4^k.

    >>> square_root_weights(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    k = np.arange(1, releases)
    return np.cumprod(np.append(1.0, (2 * k - 1) / (2 * k)))


def optimize_factor(releases: int, bands: int, objective: Objective) -> Floats:
    """Return the matrix C with unit columns and the smallest error under Gaussian noise.

    The largest variance is approximated by power means with growing exponents, from the Toeplitz root on. Only the
    diagonal and
    ``bands - 1`` diagonals below it are used.
    """
    ones = np.tril(np.ones((releases, releases)))
    place = np.arange(releases)
    used = (place[:, None] >= place) & (place[:, None] - place < bands)

    def log_error(values: Floats, power: float) -> tuple[float, Floats]:
        free = np.zeros((releases, releases))
        free[used] = np.abs(values)
        norms = np.sqrt((free**2).sum(axis=0))
        unit = free / norms
        inverse = np.linalg.inv(unit)
        estimates = ones @ inverse
        variances = (estimates**2).sum(axis=1)
        largest = variances.max()
        shares = (variances / largest) ** (power - 1)
        mean = float((shares * variances).mean() / largest)
        slope = -estimates.T @ (2 * estimates * (shares / (largest * mean * releases))[:, None]) @ inverse.T
        slope = (slope - unit * (slope * unit).sum(axis=0)) / norms
        return float(np.log(mean) / power + np.log(largest)), slope[used] * np.where(values < 0, -1, 1)

    values = toeplitz(square_root_weights(releases))[used]
    for power in (1.0,) if objective == "mean" else (4.0, 16.0, 64.0, 256.0):
        values = minimize(
            log_error, values, args=(power,), jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS}
        ).x
    free = np.zeros((releases, releases))
    free[used] = np.abs(values)
    return np.asarray(free / np.sqrt((free**2).sum(axis=0)))


def make_factor(
    name: FactorName, releases: int, objective: Objective = "largest", *, squared: bool = True, bands: int | None = None
) -> TimeFactor:
    """Return a factor by name.

    Parameters
    ----------
    name : {"toeplitz", "banded", "optimized", "splitting"}
        "toeplitz" is the square root of P. "banded" and "optimized" have the least error, with few or all diagonals;
        under pure epsilon that is the identity, one measurement of every period. "splitting" measures all rows anew in
        every release, with 1 / T of the loss: the baseline.
    releases : int
        Number of releases, T.
    objective : {"largest", "mean"}
        Whether to minimise the largest or the mean variance over the series.
    squared : bool
        Gaussian noise under zCDP; otherwise Laplace noise under pure epsilon.
    bands : int, optional
        Number of diagonals of "banded", which is the number of releases that count a row. Default: the smallest number
        whose error is within 10 % of the best.
    """
    if not is_int_in(releases, 1, MAX_RELEASES):
        raise ParameterError("releases", releases, f"must be an integer from 1 to {MAX_RELEASES}")
    if bands is not None and not is_int_in(bands, 1, releases):
        raise ParameterError("bands", bands, "must be an integer from 1 to the number of releases")
    return _make_factor(name, int(releases), objective, squared, bands)


@lru_cache(maxsize=256)
def _make_factor(name: FactorName, releases: int, objective: Objective, squared: bool, bands: int | None) -> TimeFactor:
    if name == "splitting":
        return TimeFactor(tuple((1,) * (place + 1) for place in range(releases)))
    if name == "toeplitz":
        return TimeFactor.from_matrix(toeplitz(square_root_weights(releases)))
    if not squared:  # for L1 norms of columns gradient descent ends at the identity, whatever it starts from
        return TimeFactor(tuple((0,) * place + (1,) for place in range(releases)))
    if name == "optimized" or bands is not None:
        return TimeFactor.from_matrix(optimize_factor(releases, bands or releases, objective))
    enough = BANDED_EXCESS * _make_factor("optimized", releases, objective, True, None).error(objective, squared=True)
    widths = iter(range(2, releases))
    while (width := next(widths, releases)) < releases:
        factor = _make_factor("banded", releases, objective, True, width)
        if factor.error(objective, squared=True) <= enough:
            return factor
    return _make_factor("optimized", releases, objective, True, None)


def compare_factors(
    releases: int, objective: Objective, *, squared: bool, bands: int | None = None
) -> dict[FactorName, float]:
    """Return the error of every factor relative to a single release, to four digits.

    >>> compare_factors(12, "largest", squared=True)
    {'optimized': 2.642, 'banded': 2.858, 'toeplitz': 3.425, 'splitting': 12.0}
    """
    errors = {
        name: make_factor(name, releases, objective, squared=squared, bands=bands).error(objective, squared=squared)
        for name in STRATEGIES
    }
    return {name: float(f"{error:.4g}") for name, error in errors.items()}


# -- the mechanism of one release --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesNoise(Mechanism, kind="SeriesNoise"):
    """Noise mechanism for the weighted counts of one release of a series.

    Parameters
    ----------
    base : DiscreteGaussian or DiscreteLaplace
        Noise on each weighted count, fresh in every release.
    factor : TimeFactor
        Weights of periods in the measurements.
    release : int
        Number of the release, from 1; 0 for the plan of the whole series.

    Notes
    -----
    Guarantee

    Neighbours: tables of counts that differ by one unit, and in each period by at most the sensitivity.
    Bound: all releases of the series together cost what ``base`` costs at the sensitivity times ``factor.norm``, even
    if later rows depend on earlier releases.
    Proof: proofs/release-series.md
    Test: packages/veilwood/tests/test_series_attacks.py::test_all_releases_together_keep_epsilon

    Examples
    --------
    >>> noise = SeriesNoise(DiscreteGaussian(3560), TimeFactor(((8,), (4, 8), (3, 4, 8))), 2)
    >>> noise.cost(sensitivity=1).rho  # 89 / (2 * 3560)
    Fraction(1, 80)
    >>> round(noise.variance, 2)
    69.61
    """

    base: DiscreteGaussian | DiscreteLaplace
    factor: TimeFactor
    release: int = 0
    verb = "noisy"

    def __post_init__(self) -> None:
        if not is_int_in(self.release, 0, self.factor.releases) or not isinstance(
            self.base, DiscreteGaussian | DiscreteLaplace
        ):
            raise MechanismError("a series has releases numbered from 1, with Gaussian or Laplace noise.")

    @property
    def is_gaussian(self) -> bool:
        """Whether the noise is Gaussian, so that norms are squared L2 norms."""
        return isinstance(self.base, DiscreteGaussian)

    def cost(self, sensitivity: int, selections_per_row: int = 1) -> Loss | None:
        """Return the loss of all releases together, at the sensitivity of the counts of one period."""
        return self.base.cost(sensitivity * self.factor.norm(squared=self.is_gaussian))

    @cached_property
    def variance(self) -> float:
        """Variance of the estimate of one count, including rounding; for a whole series, of the worst release."""
        numbers = [self.release] if self.release else self.factor.measured(self.factor.releases)
        return max(
            self.factor.variance_factor(number) * self.base.variance + self.factor.rounding_variance(number)
            for number in numbers
        )

    @property
    def text(self) -> str:
        """Name and parameters."""
        which = (
            f"release {self.release} of {self.factor.releases}" if self.release else f"{self.factor.releases} releases"
        )
        return f"{self.base.text}, on weighted counts of {which} (full weight {self.factor.weights[-1][-1]})"

    def perturb(self, weighted: Ints) -> Ints:
        """Return the weighted counts of this release with noise."""
        if not self.release:
            raise MechanismError("the plan of a whole series releases nothing. Hint: use the plan of one release.")
        return self.base.perturb(weighted)

    def to_dict(self) -> dict[str, str]:
        """Return the kind and the exact parameters, as text."""
        inner = self.base.to_dict()
        return {
            "kind": self.kind,
            "base": inner.pop("kind"),
            **inner,
            **self.factor.to_dict(),
            "release": str(self.release),
        }

    @classmethod
    def _from_texts(cls, texts: dict[str, str]) -> Self:
        factor = TimeFactor.from_dict({name: texts.pop(name) for name in ("weights", "lost")})
        release, kind = int(texts.pop("release")[:12]), texts.pop("base")
        base = Mechanism.from_dict({"kind": kind, **texts})
        return cls(base, factor, release)  # type: ignore[arg-type]


class SeriesStep(StepKind):
    """Kinds of steps that are measured once per series, before the first release, each with its own noise."""

    CHOICE = "choice of tables"


# -- plans of a series -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesTerms:
    """Public terms of a series, recorded in its plans: assignment of rows to periods, and weights of periods.

    ``period`` describes the column of periods; ``tree_column`` names the column of trees, if there is one. A plan holds
    the JSON form of the terms under ``choices["series"]``.
    """

    id: str
    period: Mapping[str, Any]
    tree_column: str | None
    strategy: FactorName
    objective: Objective
    law: Literal["pure", "zcdp"]
    factor: TimeFactor
    release: int = 0
    errors: Mapping[str, float] | None = None

    def to_choices(self) -> dict[str, Any]:
        """Return the terms as plain JSON values."""
        names = ("id", "tree_column", "strategy", "objective", "law", "release")
        return {
            **{name: getattr(self, name) for name in names},
            "period": dict(self.period),
            **self.factor.to_dict(),
            "errors": dict(self.errors or {}),
        }

    @classmethod
    def from_choices(cls, choices: Mapping[str, Any]) -> SeriesTerms:
        """Read what ``to_choices`` wrote. Raise PlanError for anything else."""
        try:
            texts = {name: choices[name] for name in ("id", "strategy", "objective", "law")}
            factor, errors = TimeFactor.from_dict(choices), dict(choices["errors"])
            known = texts["strategy"] in STRATEGIES and texts["objective"] in OBJECTIVES
            known = known and texts["law"] in ("pure", "zcdp") and is_int_in(choices["release"], 0, factor.releases)
            known = known and all(isinstance(text, str) for text in (*texts.values(), *errors))
            if not known or not isinstance(choices["tree_column"], str | None):
                raise TypeError
            more = {name: choices[name] for name in ("tree_column", "release")}
            return cls(**texts, **more, period=dict(choices["period"]), factor=factor, errors=errors)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PlanError("the terms of the series in this plan cannot be read.") from None

    @property
    def squared(self) -> bool:
        """Whether the loss is counted in rho, so that norms are squared L2 norms."""
        return self.law == "zcdp"

    def promised(self, requested: Loss) -> Loss:
        """Return the loss of the whole series: the requested one, or its epsilon if noise is pure."""
        assert requested.epsilon is not None
        return Loss.pure(requested.epsilon) if self.law == "pure" else requested

    def design_loss(self, requested: Loss) -> Loss:
        """Return the loss of a single release that has the noise of the series, for which a forest is designed.

        Sizes and strategies are thus chosen for the actual noise. It is not the loss of the series, whose noise
        ``plan_of_series`` plans.
        """
        promised, whole = self.promised(requested), TimeFactor(self.factor.weights)
        error = Fraction(ceil(1000 * whole.error(self.objective, squared=self.squared)), 1000)
        if self.law == "zcdp":
            assert promised.rho is not None
            return Loss.zcdp(promised.rho / error, promised.delta)
        assert promised.epsilon is not None
        return Loss.pure(promised.epsilon * 1000 / Fraction(isqrt(ceil(error * 10**6) - 1) + 1))

    def plan_of_series(self, designed: Plan, requested: Loss, opening: Plan | None = None) -> Plan:
        """Return the plan of a release of the series, or of all of it, from the design of a single release.

        Each step keeps its fraction of the loss. Its noise is calibrated to the sensitivity of the designed step times
        the norm of the factor. ``opening`` is the design before the choice, if there is one.
        """
        promised, base = self.promised(requested), self.design_loss(requested)
        steps = tuple(self._step_of_series(step, promised, base) for step in designed.steps)
        which = f"release {self.release} of" if self.release else "all of"
        ratio = steps[-1].variance / max(designed.steps[-1].variance, 1e-300)
        plan = replace(
            designed,
            steps=steps,
            loss=promised,
            released=f"{which} the {self.factor.releases} releases of series {self.id}, under one loss: "
            f"{designed.released}",
            choices={**designed.choices, "series": self.to_choices()},
            notes={**designed.notes, **self._notes()},
            expected_leaf_mse=designed.expected_leaf_mse * ratio,
        )
        if not self.release:
            return plan
        opened = self.of_all().plan_of_series(opening or designed, requested)
        return replace(plan, opened_as=opened.fingerprint())

    def of_all(self) -> SeriesTerms:
        """Return the terms of the whole series, under which the release door was opened."""
        return replace(self, release=0, factor=TimeFactor(self.factor.weights))

    def _step_of_series(self, step: Step, promised: Loss, base: Loss) -> Step:
        once = step.kind == SeriesStep.CHOICE.key
        norm = step.sensitivity * (1 if once else self.factor.norm(squared=self.squared))
        noise: DiscreteGaussian | DiscreteLaplace
        match step.mechanism:
            case DiscreteGaussian() if step.loss.rho and base.rho and promised.rho:
                loss = promised.scaled(step.loss.rho / base.rho)
                assert loss.rho is not None
                noise = DiscreteGaussian(Fraction(norm) / (2 * loss.rho))
            case DiscreteLaplace() if step.loss.epsilon and base.epsilon:
                loss = promised.scaled(step.loss.epsilon / base.epsilon)
                assert loss.epsilon is not None
                noise = DiscreteLaplace(Fraction(norm) / loss.epsilon)
            case _:
                raise PlanError(f"step {step.name!r} is not a count with noise, so it cannot be released in a series.")
        return replace(step, loss=loss, mechanism=noise if once else SeriesNoise(noise, self.factor, self.release))

    def _notes(self) -> dict[str, str]:
        """Return the errors of all strategies, for readers of a plan."""
        errors = dict(self.errors or {})
        chosen, splitting = errors.get(self.strategy), errors.get("splitting")
        if not chosen or not splitting:
            return {}
        listed = "; ".join(f"{name} {error:g}" for name, error in sorted(errors.items(), key=lambda item: item[::-1]))
        gain = (splitting / chosen) ** 0.5
        return {
            "time": f"{self.strategy}: {gain:.2f} times less noise than splitting the budget; {self.objective} "
            f"variance, in units of one release at the same loss: {listed}"
        }


def own_decisions(plan: Plan, *, opening: bool = False) -> dict[str, Any]:
    """Return the decisions of the method in a plan of a series; with ``opening``, those before the choice."""
    left_out = ("series", "chosen") if opening else ("series",)
    return {name: value for name, value in plan.choices.items() if name not in left_out}


def replan_series(plan: Plan, requested: Loss, make_plan: MakePlan, of_all: bool = False) -> Plan:
    """Recompute the plan of a release of a series, or of all of it.

    ``make_plan`` designs a single release at a loss and decisions.
    """
    terms = SeriesTerms.from_choices(plan.choices["series"])
    opening = make_plan(terms.design_loss(requested), own_decisions(plan, opening=True))
    if of_all:
        return terms.of_all().plan_of_series(opening, requested)
    chosen = "chosen" in plan.choices
    designed = make_plan(terms.design_loss(requested), own_decisions(plan)) if chosen else opening
    return terms.plan_of_series(designed, requested, opening)


def estimate_counts(factor: TimeFactor, release: int, measurements: Sequence[Ints]) -> Ints:
    """Return the estimated counts of all rows so far, from the measurements up to a release: post-processing."""
    total = np.zeros(measurements[-1].shape)
    for coefficient, measured in zip(factor.coefficients(release), measurements, strict=True):
        total += coefficient * measured
    return np.rint(total).astype(np.int64)
