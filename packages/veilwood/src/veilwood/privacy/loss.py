# SPDX-License-Identifier: Apache-2.0
"""Privacy losses of releases, and their composition, in exact rationals.

No noise is drawn here (``noise``) and nothing is recorded (``ledger``). Whom a loss protects is in ``neighbours``.

| letter | name | meaning |
|---|---|---|
| epsilon, delta | approximate privacy | P(M(D) in S) <= exp(epsilon) P(M(D') in S) + delta |
| rho | zero-concentrated privacy (zCDP) | Renyi divergence of order alpha at most rho * alpha, for every alpha > 1 |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import cache
from numbers import Rational, Real
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar

from veilwood.errors import MechanismError, ParameterError
from veilwood.safe_io import MAX_SUM_DIGITS, check_digits, parse_fraction

MAX_DELTA = Fraction(1, 100)
_MAX_DENOMINATOR = 10**100  # the squares and sums of longer denominators could not be read back from files
MIN_EPSILON, MAX_EPSILON = Fraction(1, 10**6), Fraction(10**6)
MIN_DELTA = Fraction(1, 10**30)
WEAK_EPSILON: Final = 5.0  # from here on, a guarantee is called weak: odds about a unit may change by a factor of 149
NEARLY_NONE_EPSILON: Final = (
    10.0  # from here on, a guarantee is called nearly none: odds may change by a factor of 22,027
)
_LONG_DENOMINATOR_BITS = 1000  # digits are counted only of sums whose denominators have more bits
SAMPLING_DELTA = Fraction(
    1, 10**12
)  # upper bound of the increase of delta by noise sampled in shares (proofs/secure.md)


def exact_fraction(value: object, name: str = "value") -> Fraction:
    """Return ``value`` as the fraction that its decimal form denotes: 0.1 becomes 1/10, not the nearest binary float.

    Raise ParameterError if ``value`` is not a number, or if its numerator or denominator has more than
    ``safe_io.MAX_DIGITS`` digits.

    >>> exact_fraction(0.1)
    Fraction(1, 10)
    >>> exact_fraction("1/3")
    Fraction(1, 3)
    """
    if isinstance(value, Rational) and not isinstance(value, bool):
        return check_digits(Fraction(int(value.numerator), int(value.denominator)), name)
    if isinstance(value, Real) and not isinstance(value, bool):
        return parse_fraction(repr(float(value)), name)
    if isinstance(value, str | Decimal):
        return parse_fraction(str(value), name)
    raise ParameterError(name, value, "must be a number", "pass a float, an integer or a fraction")


def zcdp_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return an epsilon, rounded up, such that rho-zCDP implies (epsilon, delta) privacy.

    Every order alpha gives a valid epsilon (Canonne, Kamath, Steinke 2020, Corollary 13), so an inexact
    minimisation can only return an epsilon that is larger than necessary, never an invalid one.

    >>> float(zcdp_epsilon(Fraction(1, 10), Fraction(1, 10**6))) < 2.3
    True
    """
    if delta <= 0:
        raise MechanismError(f"zCDP has no finite epsilon at delta={delta}. Hint: set delta to 1e-6, for example.")
    if rho == 0:
        return Fraction(0)
    rho_, log_inverse_delta = float(rho), -math.log(delta)

    def epsilon_at(log_order_minus_one: float) -> float:
        a = math.exp(log_order_minus_one)  # alpha - 1
        alpha = 1.0 + a
        return alpha * rho_ + (log_inverse_delta - math.log(alpha)) / a + math.log(a / alpha)

    found = minimize_scalar(epsilon_at, bounds=(-20.0, 40.0), method="bounded", options={"xatol": 1e-10})
    # 1e-9 covers the rounding of the dozen float operations above by a wide margin.
    return Fraction(max(0.0, epsilon_at(float(found.x)))) * (1 + Fraction(1, 10**9)) + Fraction(1, 10**12)


@cache
def zcdp_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho (rounded down) whose conversion at ``delta`` stays within ``epsilon``."""
    low, high = Fraction(0), max(epsilon, epsilon * epsilon)
    for _ in range(60):
        middle = Fraction(float((low + high) / 2))
        if zcdp_epsilon(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    # A short rational keeps noise scales readable and their arithmetic cheap.
    rounded = Fraction(math.floor(low * 10**15), 10**15)
    # Floating-point minimisation is inexact near the optimum: reducing rho by 1e-9 of its value covers the error.
    return (rounded if rounded > 0 else low) * (1 - Fraction(1, 10**9))


class _ExactSum:
    """Exact sum of fractions. It is None (unbounded) if one of them is None.

    A plan of many steps is summed again with every step, and fractions of one budget share a denominator. The sum
    keeps that denominator unreduced, so most additions are of integers.
    """

    def __init__(self) -> None:
        self.numerator, self.denominator, self._bounded = 0, 1, True

    def add(self, part: Fraction | None) -> None:
        if part is None:
            self._bounded = False
        elif self.denominator % part.denominator == 0:
            self.numerator += part.numerator * (self.denominator // part.denominator)
        else:
            total = Fraction(self.numerator, self.denominator) + part
            if total.denominator.bit_length() > _LONG_DENOMINATOR_BITS:
                check_digits(total, "the sum of the losses", MAX_SUM_DIGITS)
            self.numerator, self.denominator = total.numerator, total.denominator

    @property
    def value(self) -> Fraction | None:
        return Fraction(self.numerator, self.denominator) if self._bounded else None


@dataclass(frozen=True)
class Loss:
    """Privacy loss of one or several releases: one or two bounds that hold simultaneously.

    The release is (``epsilon``, ``delta``)-private, and, if ``rho`` is not None, also rho-zCDP.
    ``epsilon`` None means that no such bound holds (no noise was added, or rho alone is stated).

    >>> two = Loss.pure(Fraction(1, 2)) + Loss.pure(Fraction(1, 2))
    >>> two.epsilon, two.rho
    (Fraction(1, 1), Fraction(1, 4))
    """

    epsilon: Fraction | None
    delta: Fraction = Fraction(0)
    rho: Fraction | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.epsilon < 0:
            raise ParameterError("epsilon", self.epsilon, "must not be negative", "pass 0 or more")
        if not 0 <= self.delta < 1:
            raise ParameterError(
                "delta", self.delta, "must be at least 0 and below 1", "pass a small number, such as 1e-6"
            )
        if self.rho is not None and self.rho < 0:
            raise ParameterError("rho", self.rho, "must not be negative", "pass 0 or more")

    @classmethod
    def pure(cls, epsilon: Fraction) -> Loss:
        """Return the loss of pure epsilon, which is also epsilon^2/2-zCDP (Bun and Steinke 2016, Proposition 3.3)."""
        return cls(epsilon, Fraction(0), epsilon * epsilon / 2)

    @classmethod
    def zcdp(cls, rho: Fraction, delta: Fraction) -> Loss:
        """Return the loss of rho-zCDP, with the (epsilon, delta) that it implies."""
        return cls(zcdp_epsilon(rho, delta), delta, rho)

    @classmethod
    def pure_or_zcdp(cls, epsilon: Fraction, delta: Fraction) -> Loss:
        """Return (``epsilon``, ``delta``) with open accounting: steps may later add up by epsilon or by rho.

        Its rho is the larger of the two values under both accountings; it does not imply the epsilon (proofs/door.md).

        >>> Loss.pure_or_zcdp(Fraction(1), Fraction(1, 10**6)).rho
        Fraction(1, 2)
        """
        return cls(epsilon, delta, max(epsilon * epsilon / 2, zcdp_rho(epsilon, delta)))

    @classmethod
    def zero(cls) -> Loss:
        """Return a loss of zero: that of no release at all."""
        return cls(Fraction(0), Fraction(0), Fraction(0))

    @classmethod
    def unbounded(cls) -> Loss:
        """Return the loss of a release without any guarantee."""
        return cls(None)

    @classmethod
    def total(cls, losses: Iterable[Loss]) -> Loss:
        """Return the loss of sequential, adaptive composition: each kind of bound is added up separately.

        The digits of a sum of fractions can grow without bound, and so can the time of additions. Decimals such as 0.1
        never approach the limit, ``safe_io.MAX_SUM_DIGITS``.
        """
        epsilon, delta, rho = _ExactSum(), _ExactSum(), _ExactSum()
        for loss in losses:
            epsilon.add(loss.epsilon)
            rho.add(loss.rho)
            delta.add(loss.delta)
            if delta.numerator >= delta.denominator:  # from delta = 1 on, epsilon promises nothing
                epsilon.add(None)
                delta = _ExactSum()
        return cls(epsilon.value, delta.value or Fraction(0), rho.value)

    @property
    def accounting_open(self) -> bool:
        """Whether steps may add up by epsilon or by rho, because rho alone does not imply epsilon."""
        return self.rho is not None and self.delta > 0 and not Loss(None, Fraction(0), self.rho).is_within(self)

    @property
    def is_bounded(self) -> bool:
        """Whether an epsilon is guaranteed."""
        return self.epsilon is not None

    def __add__(self, other: Loss) -> Loss:
        return Loss.total((self, other))

    def times(self, n: int) -> Loss:
        """Return the loss of ``n`` releases with this loss each.

        >>> Loss.pure(Fraction(1, 2)).times(3).epsilon
        Fraction(3, 2)
        """
        epsilon, rho = (None if part is None else part * n for part in (self.epsilon, self.rho))
        return Loss(epsilon, self.delta * n, rho) if self.delta * n < 1 else Loss(None, Fraction(0), rho)

    def scaled(self, fraction: Fraction) -> Loss:
        """Return a fraction of this loss, for one step of a release: of epsilon if pure, of rho otherwise.

        The (epsilon, delta) of a fraction of rho is not tight and never reported: such steps compose by rho.

        >>> Loss.pure(Fraction(1)).scaled(Fraction(1, 4)).epsilon
        Fraction(1, 4)
        """
        if self.epsilon is None:
            return self
        if self.delta == 0:
            return Loss.pure(self.epsilon * fraction)
        return Loss(self.epsilon, self.delta, None if self.rho is None else self.rho * fraction)

    def epsilon_at(self, delta: Fraction) -> Fraction | None:
        """Return the smallest known epsilon such that (epsilon, ``delta``) holds, or None if none is known."""
        known = [] if self.epsilon is None or delta < self.delta else [self.epsilon]
        if self.rho is not None and delta > 0:
            known.append(zcdp_epsilon(self.rho, delta))
        return min(known, default=None)

    def is_within(self, budget: Loss) -> bool:
        """Return True if this loss is at most ``budget``, an (epsilon, delta) pair."""
        if budget.epsilon is None:
            return True
        epsilon = self.epsilon_at(budget.delta)
        return epsilon is not None and epsilon <= budget.epsilon

    def to_dict(self) -> dict[str, str | None]:
        """Return epsilon, delta and rho as strings that hold exact numbers."""
        return {
            "epsilon": None if self.epsilon is None else str(self.epsilon),
            "delta": str(self.delta),
            "rho": None if self.rho is None else str(self.rho),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Loss:
        """Read what ``to_dict`` wrote. Other keys are ignored."""
        epsilon, delta, rho = (
            None if data[key] is None else parse_fraction(data[key], key) for key in ("epsilon", "delta", "rho")
        )
        return cls(epsilon, Fraction(0) if delta is None else delta, rho)

    def __str__(self) -> str:
        if self.epsilon is None:
            return "unbounded (NOT PRIVATE)"
        text = f"epsilon={float(self.epsilon):.6g}"
        return text if self.delta == 0 else f"{text}, delta={float(self.delta):.3g}"


Grade: TypeAlias = Literal["private", "weak", "nearly none", "none"]
_LABELS: Final[dict[Grade, str]] = {
    "private": "private", "weak": "weak guarantee", "nearly none": "nearly no guarantee", "none": "NOT PRIVATE",
}  # fmt: skip
_UPWARDS: Final = Context(prec=40, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True)
class GuaranteeStrength:
    """Meaning of an epsilon for one unit, in the words used on certificates, reports, cards and the terminal.

    Attributes
    ----------
    grade : {"private", "weak", "nearly none", "none"}
        Weak from ``WEAK_EPSILON`` on, nearly none from ``NEARLY_NONE_EPSILON`` on, none without a guarantee.
    label : str
        The grade as shown on a badge.
    factor : str
        exp(epsilon), rounded up: the maximum factor by which the odds of any conclusion change. Empty without a
        guarantee.
    verdict : str
        A sentence on a weak guarantee; empty for the other grades.
    """

    grade: Grade
    label: str
    factor: str
    verdict: str

    @property
    def colour(self) -> str:
        """Colour of a badge: green, amber or red."""
        return {"private": "#2f6f3a", "weak": "#96670f"}.get(self.grade, "#b3412e")


def guarantee_strength(epsilon: float | Fraction | None) -> GuaranteeStrength:
    """Return the strength of a guarantee of this epsilon; None means that there is no guarantee.

    >>> guarantee_strength(1.0).factor, guarantee_strength(31.0).factor
    ('2.72', '2.91e13')
    >>> [guarantee_strength(epsilon).grade for epsilon in (4.9, 5.0, 10.0, None)]
    ['private', 'weak', 'nearly none', 'none']
    """
    if epsilon is None:
        return GuaranteeStrength("none", _LABELS["none"], "", "")
    grade: Grade = "private"
    if epsilon >= WEAK_EPSILON:
        grade = "nearly none" if epsilon >= NEARLY_NONE_EPSILON else "weak"
    label, factor, verdict = _LABELS[grade], _format_factor(epsilon), ""
    if grade != "private":
        verdict = (
            f"epsilon {float(epsilon):g} is {'a ' * (grade == 'weak')}{label}: the odds of any conclusion about "
            f"one protected unit may change by a factor of {factor}. Values of at most 2 are usual."
        )
    return GuaranteeStrength(grade, label, factor, verdict)


def _format_factor(epsilon: float | Fraction) -> str:
    """Return exp(epsilon) with three digits, rounded up so that it remains a valid bound."""
    exact = Fraction(epsilon)
    factor = _UPWARDS.exp(_UPWARDS.divide(Decimal(exact.numerator), Decimal(exact.denominator)))
    exponent = factor.adjusted()
    if exponent >= 6:
        mantissa = factor.scaleb(-exponent, _UPWARDS).quantize(Decimal("0.01"), ROUND_CEILING, _UPWARDS)
        return f"{mantissa}e{exponent}" if mantissa < 10 else f"1.00e{exponent + 1}"
    # A factor near 1 shows two significant digits of its excess over 1.
    digits = 1 - (factor - 1).adjusted() if 1 < factor < Decimal("1.1") else max(0, 2 - exponent)
    return f"{factor.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, _UPWARDS):,f}"


def format_number(value: float) -> str:
    """Return a number with six significant digits; millions are written without a power of ten.

    >>> format_number(2219570.4), format_number(0.5), format_number(20.0)
    ('2,219,570', '0.5', '20')
    """
    rounded = float(f"{value:.6g}")
    return f"{rounded:,.0f}" if 1e6 <= abs(rounded) < 1e15 else f"{rounded:.6g}"


def requested_loss(epsilon: object, delta: object) -> Loss:
    """Return the loss that the parameters ``epsilon`` and ``delta`` denote; ``epsilon=inf`` means no noise.

    If delta is above 0, the budget is expressed as rho, so that steps compose under zCDP. Raise ParameterError unless
    epsilon is between 10^-6 and 10^6, and delta is 0 or between 10^-30 and 1/100.

    >>> str(requested_loss(1.0, 0.0)), str(requested_loss(float("inf"), 0))
    ('epsilon=1', 'unbounded (NOT PRIVATE)')
    """
    if isinstance(epsilon, float | np.floating) and epsilon == math.inf:
        return Loss.unbounded()
    is_zero = isinstance(delta, float) and delta == 0  # the usual case, faster without parsing
    epsilon_, delta_ = exact_fraction(epsilon, "epsilon"), Fraction(0) if is_zero else exact_fraction(delta, "delta")
    check_budget(epsilon_, delta_)
    if max(epsilon_.denominator, delta_.denominator) > _MAX_DENOMINATOR:
        raise ParameterError(
            "epsilon", float(epsilon_), "and delta must have fewer digits", "pass a float or a short fraction"
        )
    return Loss.pure(epsilon_) if delta_ == 0 else Loss(epsilon_, delta_, zcdp_rho(epsilon_, delta_))


def check_budget(epsilon: Fraction, delta: Fraction) -> None:
    """Raise ParameterError if epsilon or delta is outside the range of budgets."""
    if epsilon <= 0:
        raise ParameterError(
            "epsilon",
            float(epsilon),
            "must be above 0",
            "choose 0.1 to 2, which is usual; float('inf') means no noise and no privacy",
        )
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise ParameterError("epsilon", float(epsilon), "must be between 1e-6 and 1e6", "0.1 to 2 is usual")
    if not 0 <= delta <= MAX_DELTA:
        raise ParameterError(
            "delta",
            float(delta),
            f"must be between 0 and {float(MAX_DELTA)}: with probability delta, the guarantee may fail",
            "choose 0 (pure epsilon), or less than 1 / number of people, about 1e-6",
        )
    if 0 < delta < MIN_DELTA:
        raise ParameterError("delta", float(delta), "is too small to differ from 0", "use delta=0")
