# SPDX-License-Identifier: Apache-2.0
"""Random decision trees (Bojarski, Choromanska, Choromanski, LeCun 2014): structure without data, noisy leaves.

The structure is grown in ``trees.random``, counted in ``trees.counting``; leaves are cleaned in ``noisy_leaves``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Count
from veilwood.data.encoding import Encoding
from veilwood.forests.method import Asked, ForestDesign, OnePassMethod, layout_of
from veilwood.forests.noisy_leaves import AUTO, LeafMethod, LeafModel, LeafParameters
from veilwood.privacy.door import Door
from veilwood.privacy.plan import Plan
from veilwood.trees.random import THRESHOLDS, Thresholds, grow_binary


@dataclass(eq=False, repr=False, kw_only=True)
class RandomTreesParameters(LeafParameters):
    """Parameters for either task."""

    n_estimators: Any = AUTO
    max_depth: Any = AUTO
    trees: str = "shared"
    thresholds: str = "path"


@dataclass(eq=False, repr=False, kw_only=True)
class RandomTreesClassifierParameters(RandomTreesParameters):
    """Parameters for classes."""

    voting: str = AUTO


class RandomTrees(LeafMethod[RandomTreesParameters], OnePassMethod[RandomTreesParameters]):
    """Random trees for either task."""

    numeric: Literal["grid"] = "grid"

    def check(self) -> None:
        """Refuse words that are not known."""
        super().check()
        self.parameters.check_words(thresholds=THRESHOLDS)

    def design_under(self, asked: Asked) -> ForestDesign:
        """Grow the trees, which needs no data, and plan the release of their leaves."""
        encoding, mine = Encoding(asked.schema, self.numeric), self.parameters
        thresholds = cast(Thresholds, mine.thresholds)
        forest = grow_binary(encoding.columns, mine.n_estimators, mine.max_depth, asked.seed, thresholds=thresholds)
        step = self.leaf_step(asked.schema, asked.loss, asked.neighbours, forest.n_leaves)
        plan = asked.plan(
            (step,),
            f"{step.name}, with noise, of {forest.n_trees} random trees grown without data",
            layout_of(forest, self.records),
            self.expected_leaf_mse(step),
            choices={"structure": forest.fingerprint()},
        )
        return ForestDesign(encoding, plan, forest)

    def count(self, design: ForestDesign) -> Count:
        """Count the rows of each class in each leaf."""
        return self.leaf_count(design.encoding, design.forest, self.assignment(design.forest.n_trees))

    def release(self, design: ForestDesign, exact: NDArray[np.int64], door: Door) -> NDArray[np.int64]:
        """Let the leaves out, with noise."""
        (step,) = design.plan.steps
        return door.noisy(step, exact)

    def learn(
        self, design: ForestDesign, plan: Plan, released: NDArray[np.int64], n_jobs: int | None = None
    ) -> LeafModel:
        """Clean the leaves."""
        return self.model(design.encoding, design.forest, released, plan)
