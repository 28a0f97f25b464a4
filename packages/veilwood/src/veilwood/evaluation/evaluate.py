# SPDX-License-Identifier: Apache-2.0
"""How good a model is on private rows, measured through the door and charged: ``vw.evaluate``.

What is counted is in ``forests.scoring``, what the noisy counts say in ``forests.quality``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood.data.batches import Batch, Source
from veilwood.data.contributions import Weights
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.problems import Invalid
from veilwood.engines.cluster.source import ClusterSource
from veilwood.engines.sql.source import SqlSource
from veilwood.errors import FileError, ParameterError, UseError, shorten
from veilwood.evaluation.quality import Quality, quality_of
from veilwood.evaluation.scoring import Scoring
from veilwood.privacy.accountant import handle_of
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import Door, noting_refusals
from veilwood.privacy.entropy import secret_key
from veilwood.privacy.ledger_stores import Ledger, open_ledger
from veilwood.privacy.loss import Loss, exact, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, unit_of
from veilwood.privacy.plan import Layout, Plan
from veilwood.safe_io import is_whole, read_json, read_text, write_file
from veilwood.trees.counting import Assignment

__all__ = [
    "Aside",
    "Evaluation",
    "costs_the_larger",
    "evaluate",
    "evaluation_plan",
    "loss_beside",
    "measure_quality",
    "model_hash",
]


_PARTS = 1000


@dataclass(frozen=True, repr=False)
class Aside:
    """A share of the units, drawn by a secret key: one coin for each row, or for all rows of an id.

    Notes
    -----
    Guarantee

    The coins of different units are independent and depend on no value, so that under add-remove one unit is in one of
    the two parts only and what is released of both costs the larger loss (proofs/evaluation.md, attacked by
    packages/veilwood/tests/evaluation/test_aside.py).
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


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` measured, what it cost, and the certificate of that."""

    quality: Quality
    """Estimates with confidence intervals."""
    plan: Plan
    """What was released."""
    privacy: PrivacyStatement
    """The certificate."""

    def __getattr__(self, name: str) -> Any:
        """Give the estimates by their names: ``found.accuracy``, ``found.r2``."""
        scores = {} if name.startswith("_") else self.quality.scores
        if name in scores:
            return scores[name]
        raise AttributeError(f"this evaluation has no {name!r}; it has {', '.join(scores)}, quality, plan and privacy")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "model": self.plan.parameters["model"],
            "quality": self.quality.to_dict(),
            "certificate": self.privacy.to_dict(),
            "plan": self.plan.to_dict(),
        }

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Evaluation:
        """Read what ``save`` wrote."""
        data = read_json(read_text(path))
        try:
            made = cls(
                Quality.from_dict(data["quality"]),
                Plan.from_dict(data["plan"]),
                PrivacyStatement.from_dict(data["certificate"]),
            )
            if made.to_dict() != data or made.privacy.plan_hash != made.plan.fingerprint():
                raise KeyError("it says other things than it was made of")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{str(path)!r} is not an evaluation: {shorten(str(error))}.") from None
        return made

    def save(self, path: str | PathLike[str]) -> None:
        """Write the evaluation to a JSON file, for ``vw.report``."""
        write_file(path, (self.to_json() + "\n").encode())

    def to_json(self) -> str:
        """Return what was measured, and its certificate, as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return f"{self.quality}\nCertificate: {self.privacy}"


def evaluation_plan(
    model: Any, loss: Loss, neighbours: Neighbours, invalid: Invalid = "refuse", **parameters: Any
) -> Plan:
    """Plan an evaluation: no rows are needed, nothing is spent. The plan names the model by what it has learned."""
    if not hasattr(model, "plan"):
        raise UseError(
            f"{type(model).__name__} is not a fitted estimator of this library. Hint: fit one, or load it by vw.load."
        )
    if not hasattr(model, "predict"):
        raise UseError(f"{type(model).__name__} answers at a price and has no free predictions that could be judged.")
    check_is_fitted(model, "model_")
    if invalid not in ("refuse", "drop"):
        raise ParameterError("invalid", invalid, "is not known", "'refuse' or 'drop'")
    step = Scoring(_model(model)).step(loss, neighbours)
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
    """Return a name of a fitted model that no other has, though it be fitted by the same plan."""
    digest = hashlib.sha256(model.privacy_.plan_hash.encode())
    for name, array in sorted(model.model_.arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _model(fitted: Any) -> Any:
    """What predicts: classifiers may weigh classes."""
    return fitted.weighed_model() if hasattr(fitted, "weighed_model") else fitted.model_


def measure_quality(
    model: Any, source: Source, door: Door, *, confidence: float = 0.95, n_jobs: int | None = None
) -> Evaluation:
    """Count how predictions meet the truth, release the counts through the door, and say what they say."""
    scoring, schema = Scoring(_model(model)), model.schema_
    (step,) = door.plan.steps
    with door:
        released = door.noisy(step, source.add_up(scoring.count(), "evaluating", n_jobs=n_jobs))
    bounds = None if schema.classes else schema.target.bounds
    quality = quality_of(scoring.tables(released), step.variance, tuple(schema.classes), bounds, confidence)
    return Evaluation(quality, door.plan, door.statement())


def loss_beside(plan: Plan, share: object, epsilon: object) -> Loss | None:
    """Return what an evaluation on units set aside costs beside the fit; None if that is nothing."""
    free = costs_the_larger(plan.neighbours)
    if share is None or free:
        if epsilon is not None:
            why = "costs nothing more here" if free else "needs evaluate_share"
            raise ParameterError("evaluate_epsilon", epsilon, why, "leave it out, or give evaluate_share=0.2")
        return None
    if epsilon is None:
        raise ParameterError(
            "evaluate_epsilon", None, f"is needed: for {plan.neighbours}, an evaluation costs something of its own",
            "evaluate_epsilon=0.1 adds as much to what the fit costs",
        )  # fmt: skip
    return requested_loss(epsilon, 0)


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
    """Measure how good a model is on private rows: one noisy histogram, released through the door and charged.

    Every number of the result comes from the same release: accuracy, AUC, log-loss, calibration and the confusion
    matrix of a classifier; R2, RMSE, MAE and bias of a regressor. Intervals take in the noise and the chance by which
    these rows were drawn, as if rows were drawn one by one. On the rows a model was trained on, the numbers are of
    those rows, and often better than on new ones.

    Parameters
    ----------
    model : fitted estimator
        It must be private itself: what is computed with a model that is not carries no guarantee, and says so.
    X, y
        The rows, as in ``fit``. They must come from people whose ledger is given.
    epsilon, delta : float
        The privacy loss of this evaluation. It adds to what the fit has cost, if people are in both tables.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    privacy_unit, adjacency
        Whom the guarantee protects; by default as in the model's own fit.
    invalid : {"refuse", "drop"}
        What to do with rows that do not fit the schema.
    confidence : float
        Of the intervals, between 0.5 and 0.9999.
    n_jobs : int, optional
        Threads.

    Returns
    -------
    Evaluation

    Notes
    -----
    Guarantee

    (epsilon, delta)-differential privacy for the unit and adjacency asked for: proofs/evaluation.md, attacked by
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
        raise ParameterError("confidence", confidence, "must be a number between 0.5 and 0.9999", "0.95 is usual")
    if n_jobs is not None and not is_whole(n_jobs, -4096, 4096):
        raise ParameterError("n_jobs", n_jobs, "is not a number of threads", "1, 2, ... or -1 for all")
    loss = requested_loss(epsilon, delta)
    own = getattr(model, "plan_", None)
    usual = Neighbours() if own is None else own.neighbours
    neighbours = Neighbours(
        usual.adjacency if adjacency is None else adjacency,  # type: ignore[arg-type]
        usual.unit if privacy_unit is None else unit_of(privacy_unit),
    )
    plan = evaluation_plan(model, loss, neighbours, invalid)
    book = open_ledger(ledger)
    if ledger is not None and loss.is_bounded:
        book.check_affordable(loss)  # first of all: whether rows fit must not be told for nothing
    door = Door(plan, book, not_private=_without_guarantee(model.privacy_), table=handle_of(X))
    with nullcontext() if ledger is None else noting_refusals(lambda: door):
        source = open_rows(X, y, model.model_.encoding, unit=neighbours.unit, invalid=invalid, estimator="evaluate")
    return measure_quality(model, source, door, confidence=confidence, n_jobs=n_jobs)


def _without_guarantee(statement: PrivacyStatement) -> str | None:
    """Why nothing is promised about an evaluation, if the model itself promises nothing."""
    return None if statement.is_private else f"the model that was evaluated is NOT PRIVATE: {statement.reason}"
