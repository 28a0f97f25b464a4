# SPDX-License-Identifier: Apache-2.0
"""An evaluation of a fitted estimator: its plan, what passes the door, and what that says.

Rows are opened by whoever asks: ``veilwood.evaluate``, or a fit that has set some aside.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood.atomic_file import write_file
from veilwood.bounded import read_json, read_text
from veilwood.data.batches import Source
from veilwood.data.problems import Invalid
from veilwood.errors import FileError, ParameterError, UseError
from veilwood.forests.aside import costs_the_larger
from veilwood.forests.quality import Quality, quality_of
from veilwood.forests.scoring import Scoring
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.wording import shorten

__all__ = ["Evaluation", "evaluation_plan", "loss_beside", "measure_quality", "model_hash"]


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
