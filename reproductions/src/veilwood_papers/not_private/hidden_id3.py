# SPDX-License-Identifier: Apache-2.0
"""MPC-ID3 and ODP+FMPC-ID3 as published: exact splits, opened or hidden. NOT PRIVATE.

If this package is installed, ``veilwood secure`` offers them as the protocols ``mpc-id3`` and ``odp-id3``. The hidden
tree with a guarantee is in ``veilwood_secure.protocols.hidden_trees``, its plan in ``protocols.hidden_forest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal

import numpy as np

from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.privacy.certificate import PrivacyCertificate, ServerParticipation, Spend, build_certificate
from veilwood.privacy.loss import Loss, exact_fraction
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.protocols.hidden_forest import HiddenPlan, forest_layout, plan_hidden_forest
from veilwood_secure.protocols.hidden_trees import HiddenTree, Recipe, draw_tree_noise, grow_hidden_tree
from veilwood_secure.protocols.noise import weight_steps
from veilwood_secure.protocols.public_trees import (
    SelectFeatures,
    SelectLabels,
    select_best_features,
    select_best_labels,
)
from veilwood_secure.protocols.records import Domain, SharedRows
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.program import complete_settings
from veilwood_secure.roles.public_programs import PublicTrees

EXACT_TREE_REASON: Final = "splits and classes of leaves are opened as they are, without noise"
EXACT_SPLITS_REASON: Final = (
    "splits are chosen without noise and users see predictions, which depend on them: one row can turn a prediction "
    "around with any certainty, so no finite epsilon holds (proofs/secure.md)"
)


LEAF_MECHANISMS: Final = {
    "laplace": "discrete Laplace noise on class counts of leaves",
    "exponential": "classes of leaves by the exponential mechanism",
}
"""The two leaf updates of the paper (section A.2.4), as certificates describe them."""


def check_leaf_mechanism(name: str, value: Any) -> Literal["laplace", "exponential"]:
    """Return one of the paper's leaf mechanisms; raise ParameterError for any other value."""
    if value not in LEAF_MECHANISMS:
        raise ParameterError(name, value, f"must be {' or '.join(LEAF_MECHANISMS)}")
    return value  # type: ignore[no-any-return]  # checked above


def recipe_as_published(
    domain: Domain, epsilon: Fraction, depth: int, leaves: Literal["laplace", "exponential"]
) -> Recipe:
    """Return the recipe of ODP+FMPC-ID3: splits without noise, and all of the paper's epsilon on the leaves.

    Raise MechanismError if exponential leaves need more comparisons than servers can hold.
    """
    recipe = Recipe(domain, (None,) * depth, 1 / epsilon, leaf_mechanism=leaves)
    if leaves == "exponential":
        weight_steps(epsilon, domain.n_classes * recipe.n_nodes(depth))
    return recipe


class ExactHiddenSplitTreeNotPrivate:
    """Hidden tree with the exact best splits, as in Algorithms 1 to 4 of the paper. NOT PRIVATE.

    The servers see nothing. Users see predictions, which are not private. Use
    ``veilwood_secure.protocols.hidden_forest.plan_hidden_forest`` for anything but the paper's figures.

    Parameters
    ----------
    schema : Schema, path or dict
        Public facts about the data.
    epsilon_in_paper : float
        Inverse scale of the noise on the class counts of leaves. It is not a privacy loss.
    max_depth : int
        Number of levels of splits.
    leaves : {"laplace", "exponential"}
        How classes of leaves are selected: by Laplace noise on counts, or by the exponential mechanism on shares.

    Notes
    -----
    Guarantee

    None, because splits are selected without noise: ``privacy_.is_private`` is False.

    Examples
    --------
    >>> import veilwood as vw
    >>> ExactHiddenSplitTreeNotPrivate(vw.datasets.car().schema, epsilon_in_paper=1.0, max_depth=2).privacy_.is_private
    False
    """

    def __init__(
        self, schema: Any, *, epsilon_in_paper: float = 1.0, max_depth: int = 3, leaves: str = "laplace"
    ) -> None:
        self.schema = Schema.resolve(schema)
        self.epsilon_in_paper = exact_fraction(epsilon_in_paper, "epsilon_in_paper")
        if self.epsilon_in_paper <= 0:
            raise ParameterError("epsilon_in_paper", epsilon_in_paper, "must be above 0")
        self.recipe = recipe_as_published(
            Domain.from_schema(self.schema), self.epsilon_in_paper, max_depth, check_leaf_mechanism("leaves", leaves)
        )

    @property
    def privacy_(self) -> PrivacyCertificate:
        """Certificate, which states that there is no guarantee."""
        sound = plan_hidden_forest(self.schema, epsilon=self.epsilon_in_paper, max_depth=self.recipe.depth).plan
        spend = Spend("none", 0, sound.loss, "not", not_private=EXACT_SPLITS_REASON)
        certificate = build_certificate(sound, spend, ServerParticipation("sampled", "rows"))
        return replace(
            certificate, mechanism=f"exact splits, {LEAF_MECHANISMS[self.recipe.leaf_mechanism]}", composition=()
        )

    def train(self, engine: Engine, records: SharedRows) -> HiddenTree:
        """Train on shares. Nothing is opened, and nothing is guaranteed."""
        return grow_hidden_tree(engine, records, self.recipe, draw_tree_noise(engine, self.recipe))


class ExactTreesNotPrivate(PublicTrees):
    """MPC-ID3: opened trees with the best splits and classes. NOT PRIVATE."""

    not_private = EXACT_TREE_REASON

    def _make_plan(self) -> Plan:
        loss = Loss.unbounded()
        levels = [Step(f"splits at depth {level}", loss, None, 1, (self.max_nodes(level), self.domain.n_features))
                  for level in range(self.depth)]  # fmt: skip
        leaves = Step("classes of leaves", loss, None, 1, (self.max_nodes(self.depth), self.domain.n_classes))
        return self.build_plan(loss, [*levels, leaves], "a tree as it is, without noise")

    def selection_rules(self) -> list[tuple[SelectFeatures, SelectLabels]]:
        """Return the exact argmax for splits and labels."""
        return [(select_best_features, select_best_labels)] * self.n_trees


class ExactHiddenSplitsNotPrivate(HiddenForest):
    """ODP+FMPC-ID3 as published: hidden exact splits, with noise only at the leaves. NOT PRIVATE.

    The setting ``leaves`` is "laplace" or "exponential", the paper's two leaf updates.
    """

    not_private = EXACT_SPLITS_REASON
    settings: ClassVar[Mapping[str, Any]] = {**HiddenForest.settings, "leaves": "laplace"}

    def _make_plan(self) -> HiddenPlan:
        chosen = complete_settings(self.task, self.settings)
        depth, n_trees = int(chosen["max_depth"]), int(chosen["n_trees"])
        leaves = check_leaf_mechanism("leaves", chosen["leaves"])
        if leaves == "exponential":
            self.ring = np.uint64  # products of weights and uniform numbers need long words
        recipe = recipe_as_published(self.domain, self.task.exact_epsilon, depth, leaves)
        loss = Loss.unbounded()
        step = Step("classes of leaves", loss, None, 1, (n_trees * recipe.n_nodes(depth), self.domain.n_classes))
        plan = Plan(
            estimator=type(self).__name__, loss=loss, neighbours=Neighbours(), steps=(step,),
            released="predictions of a forest that stays in shares, whose splits are exact",
            schema_name=self.schema.name, schema_hash=self.schema.fingerprint(),
            layout=forest_layout(recipe, n_trees), expected_leaf_mse=0.0, notes={"leaves": LEAF_MECHANISMS[leaves]},
        )  # fmt: skip
        return HiddenPlan(plan, recipe, n_trees)
