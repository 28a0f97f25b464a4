# SPDX-License-Identifier: Apache-2.0
"""Estimates of model quality from noisy counts, with confidence intervals. Post-processing only.

The counts and their sensitivity are in ``scoring``. Every estimate is a ratio of sums over cells, or of products of
sums, of the unclipped noisy counts: clipping a count at 0 would bias the estimate. Its error has two parts, both by
the delta method: the sampling error of a cell of h rows is sqrt(h), and the noise has a known variance. All estimates
are homogeneous of degree 0 (twice the rows give the same estimate), so the first part is the sum over cells of slope^2
times count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.stats import norm

from veilwood.arrays import Floats
from veilwood.evaluation.scoring import LOG_ODDS, SCORE_BINS, SIZE_EDGES, TARGET_BINS

Tables: TypeAlias = dict[str, Floats]

_MIN_DEVIATIONS = 4.0  # in standard deviations of the noise: a sum below this is not used as a divisor
MIDDLES: Floats = 1 / (1 + np.exp(-LOG_ODDS * (np.arange(SCORE_BINS) - (SCORE_BINS - 1) / 2)))
"""Probability that represents each bin of scores."""
_SIZE_BOUNDS = np.concatenate([[0.0], SIZE_EDGES, [1.0]])
# Mean and mean square of the residuals in each bin, assumed to be uniform within it.
_BIN_MEANS = (_SIZE_BOUNDS[1:] + _SIZE_BOUNDS[:-1]) / 2
_BIN_SQUARES = (_SIZE_BOUNDS[1:] ** 2 + _SIZE_BOUNDS[1:] * _SIZE_BOUNDS[:-1] + _SIZE_BOUNDS[:-1] ** 2) / 3
_TARGET_MIDDLES = (np.arange(TARGET_BINS) + 0.5) / TARGET_BINS


@dataclass(frozen=True)
class Estimate:
    """Estimate of a quality measure with its confidence interval.

    ``value`` is None if the noise is too large for an estimate; the interval then covers all possible values.
    """

    value: float | None
    low: float
    high: float

    def __str__(self) -> str:
        if self.value is None:
            return f"unknown (between {self.low:.3g} and {self.high:.3g})"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class CurvePoint:
    """One bin of a calibration curve."""

    predicted: float
    """Predicted probability."""
    happened: Estimate
    """Observed frequency."""
    rows: float
    """Approximate number of rows in the bin."""


@dataclass(frozen=True)
class Threshold:
    """Consequences of a decision threshold: predict the second of two classes from this probability on."""

    probability: float
    """Rows with at least this probability are flagged as the second class."""
    flagged: Estimate
    """Fraction of all rows that are flagged."""
    sensitivity: Estimate
    """Fraction of the second class that is flagged."""
    specificity: Estimate
    """Fraction of the first class that is not flagged."""
    positive_value: Estimate
    """Positive predictive value: fraction of the flagged rows that belong to the second class."""
    negative_value: Estimate
    """Negative predictive value: fraction of the other rows that belong to the first class."""

    @property
    def is_known(self) -> bool:
        """Whether sensitivity and specificity exceed the noise."""
        return self.sensitivity.value is not None and self.specificity.value is not None


@dataclass(frozen=True, repr=False)
class Quality:
    """Estimated quality of a model, from noisy counts."""

    task: str
    """Classification or regression."""
    confidence: float
    """Confidence level of all intervals."""
    rows: Estimate
    """Number of rows that were counted."""
    scores: dict[str, Estimate]
    """Estimates of accuracy, auc, log_loss and calibration_error; for regression, of r2, rmse, mae and bias. Each
    probability counts as the middle of its bin. For more than two classes, auc is one-vs-rest, averaged over the
    classes whose counts exceed the noise.
    """
    classes: tuple[str, ...] = ()
    """Classes, in the order of the confusion matrix."""
    confusion: tuple[tuple[float, ...], ...] = ()
    """Noisy counts, true class by predicted class. They can be negative."""
    calibration: tuple[CurvePoint, ...] = ()
    """Predicted and observed frequencies: of the second of two classes, or pooled over more than two classes."""
    clipped_at: float | None = None
    """For regression: larger residuals count as this residual, because their counts do not exceed the noise."""
    thresholds: tuple[Threshold, ...] = ()
    """For two classes: the consequences of each possible decision threshold."""

    @property
    def best_threshold(self) -> Threshold | None:
        """Threshold with the largest sum of sensitivity and specificity, or None if none exceeds the noise."""
        known = [(each.sensitivity.value + each.specificity.value, each) for each in self.thresholds
                 if each.sensitivity.value is not None and each.specificity.value is not None]  # fmt: skip
        return max(known, key=lambda one: one[0])[1] if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the estimates as a dict that can be written as JSON."""
        payload: dict[str, Any] = json.loads(
            json.dumps(asdict(self)), parse_constant=lambda _: None
        )  # a missing bound is null, which every JSON reader accepts
        return payload

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quality:
        """Read what ``to_dict`` wrote."""
        curve = [
            CurvePoint(float(point["predicted"]), _read_estimate(point["happened"]), float(point["rows"]))
            for point in data["calibration"]
        ]
        return cls(
            str(data["task"]),
            float(data["confidence"]),
            _read_estimate(data["rows"]),
            {str(name): _read_estimate(each) for name, each in data["scores"].items()},
            tuple(map(str, data["classes"])),
            tuple(tuple(map(float, row)) for row in data["confusion"]),
            tuple(curve),
            None if data["clipped_at"] is None else float(data["clipped_at"]),
            tuple(
                Threshold(float(each["probability"]), *(_read_estimate(each[name]) for name in _THRESHOLD_ESTIMATES))
                for each in data["thresholds"]
            ),
        )

    @property
    def most_frequent(self) -> tuple[str, float] | None:
        """Estimated most frequent class and the accuracy of always predicting it, or None if no count is above 0."""
        of_class = [max(sum(row), 0.0) for row in self.confusion]
        if sum(of_class) <= 0:
            return None
        largest = of_class.index(max(of_class))
        return self.classes[largest], of_class[largest] / sum(of_class)

    def __repr__(self) -> str:
        return f"Quality({', '.join(f'{name} {estimate}' for name, estimate in self.scores.items())})"

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' ')}: {estimate}" for name, estimate in self.scores.items()]
        if (usual := self.most_frequent) is not None:
            lines.insert(1, f"accuracy of always predicting {usual[0]!r}: about {usual[1]:.3f}")
        rows = "unknown" if self.rows.value is None else f"{self.rows.value:,.0f} ({self.rows.low:,.0f} to "
        rows += "" if self.rows.value is None else f"{self.rows.high:,.0f})"
        return "\n".join(
            [*lines, f"rows: {rows}", f"({self.confidence:.0%} confidence for noise and sampling together)"]
        )


_THRESHOLD_ESTIMATES: Final = ("flagged", "sensitivity", "specificity", "positive_value", "negative_value")


def _read_estimate(data: Mapping[str, Any]) -> Estimate:
    value, low, high = (data[name] for name in ("value", "low", "high"))
    return Estimate(
        None if value is None else float(value),
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
    )


@dataclass(frozen=True)
class _NoisyTables:
    """Noisy tables, the variance of the noise on each cell, and the quantile of the confidence level."""

    tables: Tables
    variance: float
    z: float

    def estimate_from(
        self,
        estimator: Callable[[Floats], float],
        table: str,
        slope: Callable[[Floats], Floats],
        low: float,
        high: float,
    ) -> Estimate:
        """Return an estimate from one table, clipped to its possible range."""
        counts = self.tables[table]
        value, error = estimator(counts), self.standard_error(counts, slope(counts))
        return clipped_interval(value, self.z * error, low, high)

    def standard_error(self, counts: Floats, slopes: Floats) -> float:
        """Return the standard error of an estimate from its slopes by cell."""
        chance = max(float((slopes**2 * counts).sum()), 0.0)
        return math.sqrt(chance + self.variance * float((slopes**2).sum()))

    def is_significant(self, counts: Floats) -> bool:
        """Return True if the sum of the counts exceeds its noise, so that it can be a divisor."""
        return float(counts.sum()) > max(_MIN_DEVIATIONS * math.sqrt(self.variance * counts.size), 1.0)

    def estimate_ratio(self, table: str, cell_values: Floats, mask: Floats, low: float, high: float) -> Estimate:
        """Return the mean of ``cell_values`` over the rows in the cells ``mask`` (ones and zeros)."""
        counts = self.tables[table]
        if not self.is_significant(counts[np.broadcast_to(mask, counts.shape) > 0]):
            return Estimate(None, low, high)
        rows = float((counts * mask).sum())
        mean = float((counts * cell_values * mask).sum()) / rows
        return self.estimate_from(lambda _: mean, table, lambda _: (cell_values - mean) * mask / rows, low, high)


def clipped_interval(value: float, half_width: float, low: float, high: float) -> Estimate:
    """Return an estimate whose value and interval are clipped to the possible range."""
    inside = [min(max(each, low), high) for each in (value, value - half_width, value + half_width)]
    return Estimate(*inside)


def estimate_quality(
    tables: Tables,
    variance: float,
    classes: tuple[str, ...],
    bounds: tuple[float, float] | None,
    confidence: float = 0.95,
) -> Quality:
    """Estimate the quality of a model from the noisy tables of a ``Scoring``.

    Parameters
    ----------
    tables : dict of ndarray
        The released tables, by name.
    variance : float
        Variance of the noise on each count.
    classes : tuple of str
        Classes of the schema; empty for regression.
    bounds : pair of float, or None
        Bounds of the target, for regression.
    confidence : float
        Confidence level of the intervals.
    """
    noisy = _NoisyTables(tables, variance, float(norm.ppf(0.5 + confidence / 2)))
    if not classes:
        assert bounds is not None
        return _regression_quality(noisy, bounds[1] - bounds[0], confidence)
    if "scores" in tables:
        return _binary_quality(noisy, classes, confidence)
    return _multiclass_quality(noisy, classes, confidence)


def _estimate_rows(noisy: _NoisyTables, table: str) -> Estimate:
    counts = noisy.tables[table]
    return clipped_interval(float(counts.sum()), noisy.z * math.sqrt(noisy.variance * counts.size), 0.0, math.inf)


# -- classification ----------------------------------------------------------------------------------------------


def _binary_quality(noisy: _NoisyTables, classes: tuple[str, ...], confidence: float) -> Quality:
    counts, half = noisy.tables["scores"], SCORE_BINS // 2
    predicted = np.arange(SCORE_BINS) >= half
    right = np.stack([~predicted, predicted]).astype(float)
    loss, everywhere = -np.log(np.stack([1 - MIDDLES, MIDDLES])), np.ones_like(counts)
    confusion = np.stack([counts[:, :half].sum(axis=1), counts[:, half:].sum(axis=1)], axis=1)
    curve = _calibration_curve(noisy, "scores", counts, np.ones(2))
    return Quality(
        "classification",
        confidence,
        _estimate_rows(noisy, "scores"),
        {
            "accuracy": noisy.estimate_ratio("scores", right, everywhere, 0.0, 1.0),
            "auc": _estimate_auc(noisy, counts[0], counts[1]),
            "log_loss": noisy.estimate_ratio("scores", loss, everywhere, 0.0, float(loss.max())),
            "calibration_error": _calibration_error(noisy, counts, np.ones(2)),
        },
        classes,
        tuple(map(tuple, confusion.tolist())),
        curve,
        thresholds=tuple(_measure_threshold(noisy, first_bin) for first_bin in range(1, SCORE_BINS)),
    )


def _measure_threshold(noisy: _NoisyTables, first_bin: int) -> Threshold:
    """Return the consequences of flagging the rows in bin ``first_bin`` and above."""
    flagged = np.broadcast_to(np.arange(SCORE_BINS) >= first_bin, (2, SCORE_BINS)).astype(float)
    positive = np.repeat([[0.0], [1.0]], SCORE_BINS, axis=1)

    def fraction(values: Floats, among: Floats) -> Estimate:
        return noisy.estimate_ratio("scores", values, among, 0.0, 1.0)

    return Threshold(
        round(float(1 / (1 + np.exp(-LOG_ODDS * (first_bin - SCORE_BINS / 2)))), 4),
        fraction(flagged, np.ones_like(flagged)),
        fraction(flagged, positive),
        fraction(1 - flagged, 1 - positive),
        fraction(positive, flagged),
        fraction(1 - positive, 1 - flagged),
    )


def _multiclass_quality(noisy: _NoisyTables, classes: tuple[str, ...], confidence: float) -> Quality:
    confusion, drawn, k = noisy.tables["confusion"], noisy.tables["drawn"], len(classes)
    loss = -np.log(MIDDLES)
    of_class = [_estimate_auc(noisy, drawn[c, 0], drawn[c, 1]) for c in range(k)]
    pooled = drawn.sum(axis=0)
    wider = _NoisyTables({"pooled": pooled}, noisy.variance * k, noisy.z)
    drawn_by = np.array([k - 1.0, 1.0])  # weights: each row draws one of its k - 1 wrong classes
    return Quality(
        "classification",
        confidence,
        _estimate_rows(noisy, "confusion"),
        {
            "accuracy": noisy.estimate_ratio("confusion", np.eye(k), np.ones((k, k)), 0.0, 1.0),
            "auc": _mean_estimate(of_class),
            "log_loss": noisy.estimate_ratio("own", loss, np.ones(SCORE_BINS), 0.0, float(loss.max())),
            "calibration_error": _calibration_error(wider, pooled, drawn_by),
        },
        classes,
        tuple(map(tuple, confusion.tolist())),
        _calibration_curve(wider, "pooled", pooled, drawn_by),
    )


def _estimate_auc(noisy: _NoisyTables, negative: Floats, positive: Floats) -> Estimate:
    """Return the AUC: the probability that a positive row scores higher than a negative row. Ties count half.

    The numerator and the denominator are linear in the counts of each class, whose noise is independent, so noise
    causes no bias in them.
    """
    if not (noisy.is_significant(negative) and noisy.is_significant(positive)):
        return Estimate(None, 0.0, 1.0)
    below = np.cumsum(negative) - negative / 2  # negatives with a lower score than each bin's positives
    above = positive.sum() - np.cumsum(positive) + positive / 2
    n, p = float(negative.sum()), float(positive.sum())
    area = float((positive * below).sum()) / (n * p)
    slopes = np.stack([(above / p - area) / n, (below / n - area) / p])
    return clipped_interval(area, noisy.z * noisy.standard_error(np.stack([negative, positive]), slopes), 0.0, 1.0)


def _mean_estimate(estimates: list[Estimate]) -> Estimate:
    """Return the mean of the known estimates. Errors add up, as in the worst case of correlation."""
    known = [(each.value, (each.high - each.low) / 2) for each in estimates if each.value is not None]
    if not known:
        return Estimate(None, 0.0, 1.0)
    value, reach = np.mean(known, axis=0)
    return clipped_interval(float(value), float(reach), 0.0, 1.0)


def _calibration_curve(noisy: _NoisyTables, table: str, counts: Floats, weights: Floats) -> tuple[CurvePoint, ...]:
    """Return the bins of the curve, each with the fraction of its rows that belong to the class."""
    points = []
    for bin_, predicted in enumerate(MIDDLES):
        here = np.zeros_like(counts)
        here[:, bin_] = weights
        happened = noisy.estimate_ratio(table, np.stack([np.zeros(SCORE_BINS), np.ones(SCORE_BINS)]), here, 0.0, 1.0)
        points.append(CurvePoint(float(predicted), happened, float(weights @ counts[:, bin_])))
    return tuple(points)


def _calibration_error(noisy: _NoisyTables, counts: Floats, weights: Floats) -> Estimate:
    """Return the mean distance of predicted from observed frequencies, over bins whose counts exceed the noise.

    A distance is never negative, so noise would increase it: each squared distance is reduced by its squared error.
    """
    total, parts, reach = 0.0, 0.0, 0.0
    for bin_, predicted in enumerate(MIDDLES):
        pair = counts[:, bin_]
        if not noisy.is_significant(pair):
            continue
        rows = float(weights @ pair)
        share = min(max(float(weights[1] * pair[1]) / rows, 0.0), 1.0)
        error = noisy.standard_error(pair, weights * np.array([-share, 1 - share]) / rows)
        parts += rows * math.sqrt(max((share - predicted) ** 2 - error**2, 0.0))
        reach += (rows * error) ** 2
        total += rows
    if total <= 0:
        return Estimate(None, 0.0, 1.0)
    return clipped_interval(parts / total, noisy.z * math.sqrt(reach) / total, 0.0, 1.0)


# -- regression --------------------------------------------------------------------------------------------------


def _regression_quality(noisy: _NoisyTables, width: float, confidence: float) -> Quality:
    residuals, targets = noisy.tables["residuals"], noisy.tables["targets"]
    cut = _find_cut(residuals.sum(axis=0), 2 * noisy.variance)
    size, square = np.minimum(_BIN_MEANS, _BIN_MEANS[cut]), np.minimum(_BIN_SQUARES, _BIN_SQUARES[cut])
    among = np.ones_like(residuals)  # residuals above the cut count as the cut, so no row is left out
    signed = np.stack([-size, size])
    mae, mse = (noisy.estimate_ratio("residuals", np.stack([each, each]), among, 0.0, 1.0) for each in (size, square))
    bias, hidden = noisy.estimate_ratio("residuals", signed, among, -1.0, 1.0), _hidden_residual(noisy, _BIN_MEANS, cut)
    mae = replace(mae, high=min(mae.high + hidden, 1.0))
    mse = replace(mse, high=min(mse.high + _hidden_residual(noisy, _BIN_SQUARES, cut), 1.0))
    bias = replace(bias, low=max(bias.low - hidden, -1.0), high=min(bias.high + hidden, 1.0))
    roots = [None if each is None else math.sqrt(each) * width for each in (mse.value, mse.low, mse.high)]
    return Quality(
        "regression",
        confidence,
        _estimate_rows(noisy, "targets"),
        {
            "r2": _estimate_r2(noisy, mse, targets),
            "rmse": Estimate(roots[0], roots[1] or 0.0, roots[2] or 0.0),
            "mae": _scale_estimate(mae, width),
            "bias": _scale_estimate(bias, width),
        },
        clipped_at=float(_SIZE_BOUNDS[cut + 1]) * width,
    )


def _hidden_residual(noisy: _NoisyTables, cell_values: Floats, cut: int) -> float:
    """Return the largest amount that residuals above bin ``cut``, hidden by noise, can add to the mean over all rows.

    By Abel's summation this is a sum over bins: rows beyond a bin, times its increase over the previous bin.
    """
    counts = noisy.tables["residuals"].sum(axis=0)
    beyond = np.cumsum(counts[::-1])[::-1] + noisy.z * np.sqrt(2 * noisy.variance * np.arange(len(counts), 0, -1))
    most = np.minimum.accumulate(np.maximum(beyond, 0.0))[cut + 1 :]
    return float((np.diff(cell_values)[cut:] * most).sum()) / max(float(counts.sum()), 1.0)


def _scale_estimate(estimate: Estimate, width: float) -> Estimate:
    value = None if estimate.value is None else estimate.value * width
    return Estimate(value, estimate.low * width, estimate.high * width)


def _find_cut(counts: Floats, variance: float) -> int:
    """Return the last index from which the sum of all later counts exceeds its noise, or 0 if there is none."""
    beyond = np.cumsum(counts[::-1])[::-1]
    noise = np.sqrt(variance * np.arange(len(counts), 0, -1))
    return int(np.flatnonzero(np.append(True, beyond[1:] > 3 * noise[1:] + 1)).max())


def _estimate_r2(noisy: _NoisyTables, mse: Estimate, targets: Floats) -> Estimate:
    """Return R2: 1 - mean squared residual / variance of targets. The errors of both add up, as in the worst case."""
    unknown = Estimate(None, -math.inf, 1.0)
    if mse.value is None or not noisy.is_significant(targets):
        return unknown
    rows = float(targets.sum())
    # At both ends, bins whose counts do not exceed the noise count as the last bin that does.
    ends = TARGET_BINS - 1 - _find_cut(targets[::-1], noisy.variance), _find_cut(targets, noisy.variance)
    place = np.clip(_TARGET_MIDDLES, _TARGET_MIDDLES[min(ends)], _TARGET_MIDDLES[max(ends)])
    mean = float((targets * place).sum()) / rows
    spread = (place - mean) ** 2 + 1 / (12 * TARGET_BINS**2)
    variance = float((targets * spread).sum()) / rows
    error = noisy.standard_error(targets, (spread - variance) / rows)
    if variance < _MIN_DEVIATIONS * error:
        return unknown
    value, reach = 1 - mse.value / variance, noisy.z * error * mse.value / variance**2
    return Estimate(
        value,
        value - (mse.high - mse.value) / variance - reach,
        min(value + (mse.value - mse.low) / variance + reach, 1.0),
    )
