# SPDX-License-Identifier: Apache-2.0
"""Private evaluation of a model on holdout splits or other rows, released through the door: ``vw.evaluate``.

The counts are in ``scoring``, the estimates from noisy counts in ``quality``.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood.charts import html_card
from veilwood.data.batches import Batch, Source
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Invalid
from veilwood.errors import FileError, ParameterError, UseError, UtilityWarning, shorten_text
from veilwood.evaluation.quality import Quality, estimate_quality
from veilwood.evaluation.scoring import Scoring
from veilwood.privacy.accountant import UNNAMED_DATA, DataHandle, handle_of, warn_of_smaller_unit, was_released
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import Door, ParallelDoor, parallel_loss
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss
from veilwood.privacy.neighbours import Neighbours, RowsOf, Unit, resolve_unit
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.release import Release
from veilwood.safe_io import is_int_in, read_json, read_text, write_file
from veilwood.trees.counting import Assignment

_PER_MILLE = 1000  # resolution of a holdout fraction


@dataclass(frozen=True, repr=False)
class HoldoutSplit:
    """Holdout split of the units by a secret key: one draw per row, or one for all rows of an id.

    Notes
    -----
    Guarantee

    The draws of different units are independent and depend on no value. Under add-remove, a unit is therefore in only
    one of the two groups, and releases on both together cost the larger loss (proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_evaluate.py).
    """

    key: bytes
    per_mille: int

    @classmethod
    def draw(cls, fraction: object) -> HoldoutSplit:
        """Draw a key for a fraction of the units, between 0.01 and 0.9."""
        wanted = exact_fraction(fraction, "holdout_fraction") if not isinstance(fraction, bool) else Fraction(0)
        if not Fraction(1, 100) <= wanted <= Fraction(9, 10):
            raise ParameterError(
                "holdout_fraction", fraction, "must lie between 0.01 and 0.9", "pass 0.2 to hold out a fifth"
            )
        return cls(secret_key(), round(wanted * _PER_MILLE))

    def open_parts(self, opener: Callable[..., Source], unit: Unit) -> list[Source]:
        """Open the training rows and the held-out rows. ``opener`` is ``open_rows`` without an id filter."""
        if isinstance(unit, RowsOf):
            return [opener(id_filter=lambda text: not self._has_id(text)), opener(id_filter=self._has_id)]
        source = opener()
        return [source.select_part(_HoldoutFilter(self, False)), source.select_part(_HoldoutFilter(self, True))]

    def _has_id(self, text: str) -> bool:
        word = int.from_bytes(hashlib.shake_256(self.key + text.encode("utf-8", "surrogatepass")).digest(4), "big")
        return word * _PER_MILLE >> 32 < self.per_mille


@dataclass(frozen=True, repr=False)  # no repr: workers of a cluster log failed calls with their arguments
class _HoldoutFilter:
    """Filter for the held-out rows of a split, or for the other rows (``batches.RowFilter``)."""

    split: HoldoutSplit
    held_out: bool

    @property
    def key(self) -> bytes:
        return self.split.key

    @property
    def per_mille(self) -> int:
        return self.split.per_mille

    def __call__(self, batch: Batch) -> Batch:
        return _filter_batch(Assignment(self.key, _PER_MILLE), self.per_mille, self.held_out, batch)


def _filter_batch(assignment: Assignment, per_mille: int, held_out: bool, batch: Batch) -> Batch:
    drawn = assignment.trees_of_rows(batch.partition, batch.first_row, len(batch.target)) < per_mille
    mine = drawn == held_out
    return batch._replace(codes=batch.codes[mine], target=batch.target[mine])


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Result of ``evaluate``: estimates of quality, the plan and the privacy certificate."""

    quality: Quality
    """Estimates with confidence intervals."""
    plan: Plan
    """The plan of the release."""
    privacy: PrivacyCertificate
    """The privacy certificate."""

    def __getattr__(self, name: str) -> Any:
        """Return an estimate by its name: ``evaluation.accuracy``, ``evaluation.r2``."""
        scores = {} if name.startswith("_") else self.quality.scores
        if name in scores:
            return scores[name]
        raise AttributeError(f"this evaluation has no {name!r}; it has {', '.join(scores)}, quality, plan and privacy")

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as a dict that can be written as JSON."""
        return {
            "model": self.plan.parameters["model"],
            "quality": self.quality.to_dict(),
            "certificate": self.privacy.to_dict(),
            "plan": self.plan.to_dict(),
        }

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Evaluation:
        """Read an evaluation that ``save`` wrote."""
        data = read_json(read_text(path))
        try:
            made = cls(
                Quality.from_dict(data["quality"]),
                Plan.from_dict(data["plan"]),
                PrivacyCertificate.from_dict(data["certificate"]),
            )
            if made.to_dict() != data or made.privacy.plan_hash != made.plan.fingerprint():
                raise KeyError("its parts do not match")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{str(path)!r} is not an evaluation: {shorten_text(str(error))}.") from None
        return made

    def save(self, path: str | PathLike[str]) -> None:
        """Write the evaluation to a JSON file, for ``vw.report``."""
        write_file(path, (self.to_json() + "\n").encode())

    def to_json(self) -> str:
        """Return the evaluation and its certificate as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return f"{self.quality}\nCertificate: {self.privacy}"

    def __repr__(self) -> str:
        first = next(iter(self.quality.scores.items()))
        return f"Evaluation({first[0]} {first[1]}, {self.privacy!r})"

    def _repr_html_(self) -> str:
        """Show the evaluation in a notebook."""
        rows = [(name.replace("_", " "), str(each)) for name, each in self.quality.scores.items()]
        note = f"{self.quality.confidence:.0%} confidence, for noise and sampling together"
        return html_card("Evaluation on private rows", note, [("measure", "estimate and interval"), *rows])


def evaluation_plan(
    model: Any, loss: Loss, neighbours: Neighbours, invalid: Invalid = "refuse", **parameters: Any
) -> Plan:
    """Return the plan of an evaluation. Reads no rows and spends no budget. The plan has a hash of the model."""
    if not hasattr(model, "plan"):
        raise UseError(
            f"{type(model).__name__} is not a fitted estimator of this library. Hint: fit one, or use vw.load."
        )
    if not hasattr(model, "predict"):
        raise UseError(f"{type(model).__name__} charges for every batch of predictions and cannot be evaluated.")
    check_is_fitted(model, "model_")
    if invalid not in ("refuse", "drop"):
        raise ParameterError("invalid", invalid, "must be 'refuse' or 'drop'", "pass one of them")
    step = Scoring(model._prediction_model()).plan_step(loss, neighbours)
    return Plan(
        estimator="evaluate",
        parameters={"model": model_hash(model), "of": type(model).__name__, "invalid": invalid, **parameters},
        loss=loss,
        neighbours=neighbours,
        steps=(step,),
        released=f"counts of the predictions of a {type(model).__name__} by truth, with noise",
        schema_name=model.schema_.name,
        schema_hash=model.schema_.fingerprint(),
        layout=Layout(),
        expected_leaf_mse=step.variance,
    )


def model_hash(model: Any) -> str:
    """Return the SHA-256 hash of the plan and arrays of a fitted model, which identifies this fit."""
    digest = hashlib.sha256(model.privacy_.plan_hash.encode())
    for name, array in sorted(model.model_.to_arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def measure_quality(
    model: Any, source: Source, release: Release, *, confidence: float = 0.95, n_jobs: int | None = None
) -> Evaluation:
    """Count predictions by true target, release the counts through the door, and estimate the quality."""
    scoring, schema, plan = Scoring(model._prediction_model()), model.schema_, release.door.plan
    (step,) = plan.steps
    released = release.measure(
        lambda door: door.release_counts(step, source.aggregate(scoring.make_count(), "evaluating", n_jobs=n_jobs))
    )
    bounds = None if schema.classes else schema.target.bounds
    quality = estimate_quality(scoring.split_tables(released), step.variance, tuple(schema.classes), bounds, confidence)
    return Evaluation(quality, plan, release.certificate())


@dataclass(frozen=True)
class Holdout:
    """Evaluation of a fit on held-out units; without a split, no evaluation."""

    split: HoldoutSplit | None
    fraction: float
    extra_loss: Loss | None
    """Additional privacy loss of the evaluation; None if the loss of the fit covers it."""

    @classmethod
    def requested(cls, plan: Plan, fraction: Any, epsilon: object) -> Holdout:
        """Return the evaluation that the arguments of ``fit`` request. Raise ParameterError if they are invalid."""
        split = None if fraction is None else HoldoutSplit.draw(fraction)
        free = plan.neighbours.in_one_part
        if split is None or free:
            if epsilon is not None:
                why = "costs nothing more here" if free else "needs holdout_fraction"
                raise ParameterError("evaluate_epsilon", epsilon, why, "leave it out, or pass holdout_fraction=0.2")
            return cls(split, float(fraction or 0), None)
        if epsilon is None:
            raise ParameterError(
                "evaluate_epsilon", None, f"is required: for {plan.neighbours}, an evaluation has a loss of its own",
                "pass evaluate_epsilon=0.1 to add this much to the loss of the fit",
            )  # fmt: skip
        return cls(split, float(fraction), requested_loss(epsilon, 0))

    def open_parts(self, opener: Callable[..., Source], unit: Unit) -> list[Source]:
        """Open the training rows and, if units are held out, the evaluation rows."""
        return [opener()] if self.split is None else self.split.open_parts(opener, unit)

    def evaluate(self, model: Any, source: Source, fit_door: Door) -> Evaluation:
        """Evaluate a model on the held-out units, covered by the loss of its fit or with an additional loss."""
        loss = parallel_loss(fit_door.plan.loss) if self.extra_loss is None else self.extra_loss
        plan = evaluation_plan(model, loss, fit_door.plan.neighbours, model.invalid, share=self.fraction)
        not_private = None if model.privacy_.is_private else model.privacy_.reason
        door: Door = ParallelDoor(plan, fit_door)
        if self.extra_loss is not None:
            door = Door(plan, fit_door.ledger, not_private=not_private, table=fit_door.table)
        return measure_quality(model, source, Release(door), n_jobs=model.n_jobs)


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    delta: float = 0.0,
    ledger: Ledger | str | PathLike[str] | None = None,
    privacy_unit: Any = None,
    adjacency: str | None = None,
    invalid: Invalid = "refuse",
    confidence: float = 0.95,
    n_jobs: int | None = None,
) -> Evaluation:
    """Evaluate a model on private rows: release one noisy histogram through the door and charge the ledger.

    Every number of the result comes from the same release: accuracy, AUC, log-loss, calibration and the confusion
    matrix of a classifier; R2, RMSE, MAE and bias of a regressor. Intervals include the noise and the sampling error,
    as if rows were drawn independently. On the rows that a model was trained on, the estimates describe those rows and
    are often better than on new ones.

    Parameters
    ----------
    model : fitted estimator
        The model to evaluate. If it is not private, the evaluation has no guarantee, and its certificate says so.
    X, y
        The rows, as in ``fit``.
    epsilon, delta : float
        The privacy loss of this evaluation. It adds to the loss of the fit for people who are in both tables.
    ledger : Ledger or path, optional
        Ledger to charge: the ledger of the people whom the rows describe.
    privacy_unit, adjacency
        The protected unit and the adjacency. Default: those of the fit of the model.
    invalid : {"refuse", "drop"}
        What to do with rows that violate the schema.
    confidence : float
        Confidence level of the intervals, between 0.5 and 0.9999.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    Evaluation

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the given unit and adjacency: proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_evaluate.py.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, random_state=0).fit(car.X[::2], car.y[::2])
    >>> found = vw.evaluate(forest, car.X[1::2], car.y[1::2], epsilon=1.0)
    >>> sorted(found.quality.scores)
    ['accuracy', 'auc', 'calibration_error', 'log_loss']
    >>> found.privacy.epsilon, bool(found.accuracy.low <= found.accuracy.value <= found.accuracy.high)
    (1.0, True)
    """
    if not isinstance(confidence, float) or not 0.5 <= confidence <= 0.9999:
        raise ParameterError("confidence", confidence, "must be a number between 0.5 and 0.9999", "pass 0.95")
    if n_jobs is not None and not is_int_in(n_jobs, -4096, 4096):
        raise ParameterError("n_jobs", n_jobs, "must be a number of threads", "pass 1, 2, ... or -1 for all")
    loss = requested_loss(epsilon, delta)
    own = getattr(model, "plan_", None)
    usual = Neighbours() if own is None else own.neighbours
    neighbours = Neighbours(
        usual.adjacency if adjacency is None else adjacency,  # type: ignore[arg-type]
        usual.unit if privacy_unit is None else resolve_unit(privacy_unit),
    )
    plan = evaluation_plan(model, loss, neighbours, invalid)
    warn_of_smaller_unit(neighbours.unit, model.schema_.privacy_unit, model.schema_.name)
    opened = open_ledger(ledger)
    _warn_of_training_rows(handle_of(X), model.privacy_.plan_hash, opened)
    reason = None if model.privacy_.is_private else model.privacy_.reason
    not_private = None if reason is None else f"the model that was evaluated is NOT PRIVATE: {reason}"
    release = Release.for_plan(plan, opened, X, not_private=not_private)
    source = release.open_rows(
        lambda: open_rows(X, y, model.model_.encoding, unit=neighbours.unit, invalid=invalid, estimator="evaluate")
    )
    return measure_quality(model, source, release, confidence=confidence, n_jobs=n_jobs)


def _warn_of_training_rows(handle: DataHandle, plan: str, ledger: Ledger | None) -> None:
    """Warn if this process or the ledger recorded that the model was trained on the same path or object.

    No rows are read, so the same rows under another name are not detected. A ledger records only the kind of an object
    in memory.
    """
    has_path = handle.number == 0 and handle != UNNAMED_DATA
    trained = was_released(handle, plan) or (
        has_path
        and ledger is not None
        and any(
            entry.is_counted and (entry.plan, entry.table) == (plan, handle.short_name) for entry in ledger.entries()
        )
    )
    if trained:
        warnings.warn(
            f"a model of this plan was trained on {handle.short_name}: on its training rows, estimates are often "
            "better than on new rows. Hint: evaluate on other rows, or fit with holdout_fraction=0.3.",
            UtilityWarning,
            stacklevel=3,
        )
