# SPDX-License-Identifier: Apache-2.0
"""Attacks on the private forests of other libraries. Veilwood's estimators are attacked in ``attacks``."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from veilwood.arrays import Floats
from veilwood.errors import SetupError
from veilwood_audit.statistics import ALPHA, epsilon_lower_bound

_N_TREES = 6
_N_RUNS = 1000  # fits on each of two neighbouring tables, about 20 ms each


@dataclass(frozen=True)
class PeerAttack:
    """Result of an attack on another library's forest.

    Attributes
    ----------
    peer, version, estimator : str
        Attacked library, its version and the class of its forest.
    epsilon : float
        Claimed epsilon.
    confidence : float
        Probability that ``epsilon_lower_bound`` is not too large.
    runs : int
        Fits on each of the two tables.
    hits_likely, hits_unlikely : int
        Number of fits with the event, on the table that makes it likely and on its neighbour.
    epsilon_lower_bound : float
        Lower bound on epsilon that the event shows.
    seed_in_model : bool
        Whether fitted trees contain the seeds of their noise.
    """

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
        """Whether the bound exceeds the claimed epsilon, or a seed in the model lets anyone remove the noise."""
        return self.epsilon_lower_bound > self.epsilon or self.seed_in_model

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {**asdict(self), "refuted": self.refuted}


def attack_diffprivlib(epsilon: float = 1.0, *, runs: int = _N_RUNS, alpha: float = ALPHA) -> PeerAttack:
    """Attack the forest of diffprivlib, which assigns consecutive blocks of rows of equal size to trees.

    The table has 18 equal rows for six trees, labelled 010 101 010 101 010 101, so neighbouring trees see opposite
    majorities. One more row at the end moves every boundary. All trees but the first then see the opposite majority,
    although the claim assumes that a row affects one tree. The event, fixed in advance, is that trees two to six all
    predict these opposite majorities. The attack also tests whether fitted trees contain the seeds of their noise.

    Parameters
    ----------
    epsilon : float
        Claimed epsilon.
    runs : int
        Number of fits on each of the two tables.
    alpha : float
        Probability that the bound is too large.

    Raises
    ------
    SetupError
        If diffprivlib cannot be imported.
    """
    try:
        models: Any = importlib.import_module("diffprivlib.models")
        version = str(importlib.import_module("diffprivlib").__version__)
    except ImportError as error:
        raise SetupError(
            f"diffprivlib cannot be imported ({error}). Hint: in a separate environment, run "
            "pip install veilwood 'diffprivlib==0.6.6' 'scikit-learn<1.9'."
        ) from None

    def fit_forest(y: list[int], depth: int) -> Any:
        return models.RandomForestClassifier(
            n_estimators=_N_TREES, epsilon=epsilon, bounds=(0, 1), classes=[0, 1], max_depth=depth
        ).fit(_feature_rows(y), np.array(y))

    def predict_labels(y: list[int]) -> list[int]:
        return [int(tree.predict(_feature_rows(y)[:1])[0]) for tree in fit_forest(y, depth=1).estimators_[1:]]

    before = [0, 1, 0, 1, 0, 1] * 3
    event = [0, 1, 0, 1, 0]  # majorities of trees two to six after the boundaries have moved
    with warnings.catch_warnings(action="ignore"):
        hits = [sum(predict_labels(y) == event for _ in range(runs)) for y in ([*before, 0], before)]
        # The forest is fitted without a seed. If clones of its trees get the same noise, the trees contain seeds.
        parts = list(
            zip(fit_forest(before, depth=5).estimators_, np.reshape(before, (_N_TREES, -1)).tolist(), strict=True)
        )
        refitted = [clone(tree).fit(_feature_rows(part), np.array(part)) for tree, part in parts]
    are_equal = all(
        np.array_equal(tree.tree_.threshold, other.tree_.threshold)
        and np.array_equal(tree.tree_.value, other.tree_.value)
        for (tree, _), other in zip(parts, refitted, strict=True)
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
        seed_in_model=are_equal,
    )


def _feature_rows(y: list[int]) -> Floats:
    return np.full((len(y), 1), 0.5)


PEERS = {"diffprivlib": attack_diffprivlib}
"""Attacks by name of the library."""
