# SPDX-License-Identifier: Apache-2.0
"""Attacks on other libraries' private forests, where they are installed; ours are attacked in ``attacks``."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from veilwood.errors import SetupError
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound

__all__ = ["PEERS", "PeerAttack", "attack_diffprivlib"]

_N_TREES = 6
_N_RUNS = 1000  # on each of two neighbours, some 20 ms each


@dataclass(frozen=True)
class PeerAttack:
    """What was found out about another library's forest."""

    peer: str
    version: str
    estimator: str
    epsilon: float
    confidence: float
    runs: int
    hits_likely: int
    hits_unlikely: int
    epsilon_lower_bound: float
    seed_in_model: bool

    @property
    def refuted(self) -> bool:
        """Whether the claimed epsilon is shown to be exceeded, or noise can be taken off with a seed in the model."""
        return self.epsilon_lower_bound > self.epsilon or self.seed_in_model

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "refuted": self.refuted}


def attack_diffprivlib(epsilon: float = 1.0, *, runs: int = _N_RUNS, alpha: float = ALPHA) -> PeerAttack:
    """Attack the forest of diffprivlib: rows go to trees in consecutive equal parts, so that one row moves many.

    Eighteen alike rows for six trees, labelled 010 101 010 101 010 101: each tree sees the opposite majority of its
    neighbours. One more row at the end moves every boundary, and all but the first tree then see the other majority,
    though the claim is for one tree. The event, fixed beforehand: trees two to six all say what they see then.
    Beside that, it is tried whether fitted trees still hold the seeds of their noise.

    Parameters
    ----------
    epsilon : float
        What the forest is asked to keep.
    runs : int
        Fits on each side.
    """
    try:
        models: Any = importlib.import_module("diffprivlib.models")
        version = str(importlib.import_module("diffprivlib").__version__)
    except ImportError as error:
        raise SetupError(
            f"diffprivlib cannot be imported here ({error}). Hint: in an environment of its own, "
            "pip install veilwood 'diffprivlib==0.6.6' 'scikit-learn<1.9'."
        ) from None

    def fit_forest(y: list[int], depth: int) -> Any:
        return models.RandomForestClassifier(
            n_estimators=_N_TREES, epsilon=epsilon, bounds=(0, 1), classes=[0, 1], max_depth=depth
        ).fit(_feature_rows(y), np.array(y))

    def predict_labels(y: list[int]) -> list[int]:
        return [int(tree.predict(_feature_rows(y)[:1])[0]) for tree in fit_forest(y, depth=1).estimators_[1:]]

    before = [0, 1, 0, 1, 0, 1] * 3
    wanted = [0, 1, 0, 1, 0]  # majorities of trees two to six once the parts have moved
    with warnings.catch_warnings(action="ignore"):
        hits = [sum(predict_labels(y) == wanted for _ in range(runs)) for y in ([*before, 0], before)]
        # A forest fitted without a seed: do its trees come out alike, noise and all, when fitted as they are now?
        parts = list(
            zip(fit_forest(before, depth=5).estimators_, np.reshape(before, (_N_TREES, -1)).tolist(), strict=True)
        )
        again = [clone(tree).fit(_feature_rows(part), np.array(part)) for tree, part in parts]
    same = all(
        np.array_equal(tree.tree_.threshold, other.tree_.threshold)
        and np.array_equal(tree.tree_.value, other.tree_.value)
        for (tree, _), other in zip(parts, again, strict=True)
    )
    return PeerAttack(
        peer="diffprivlib",
        version=version,
        estimator="RandomForestClassifier",
        epsilon=epsilon,
        confidence=1 - alpha,
        runs=runs,
        hits_likely=hits[0],
        hits_unlikely=hits[1],
        epsilon_lower_bound=epsilon_lower_bound(hits[0], runs, hits[1], runs, alpha=alpha),
        seed_in_model=same,
    )


def _feature_rows(y: list[int]) -> NDArray[np.float64]:
    return np.full((len(y), 1), 0.5)


PEERS = {"diffprivlib": attack_diffprivlib}
"""The attacks by the name of the library."""
