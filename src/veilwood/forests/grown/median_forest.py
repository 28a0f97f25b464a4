# SPDX-License-Identifier: Apache-2.0
"""Median forests (DiPriMe, Consul and Williamson 2020): splits at private medians, noisy leaves.

A level of splits is grown in ``medians``; what happens at leaves is in ``noisy_leaves``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, cast

from veilwood.data.encoding import Encoding
from veilwood.forests.grown.base import GrownMethod, GrownParameters
from veilwood.forests.grown.levels import LevelNodes, Splitter
from veilwood.forests.grown.medians import VARIANTS, MedianLevel, Variant, grow_level, plan_level
from veilwood.trees.levelwise import Growing


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestParameters(GrownParameters):
    """Parameters for either task."""

    variant: str = "select-then-median"
    split_share: float = 0.5
    candidates: int = 5


@dataclass(eq=False, repr=False, kw_only=True)
class MedianForestClassifierParameters(MedianForestParameters):
    """Parameters for classes."""

    voting: str = "threshold"


class MedianForest(GrownMethod[MedianForestParameters]):
    """Median forests for either task."""

    numeric: Literal["grid"] = "grid"
    splits: ClassVar[str] = "split at private medians"
    variants: ClassVar[tuple[str, ...]] = VARIANTS

    @property
    def variant(self) -> Variant:
        """How attributes and medians are chosen."""
        return cast(Variant, self.parameters.variant)

    @classmethod
    def sizes(cls, encoding: Encoding, parameters: Any, *, noiseless: bool) -> Iterator[tuple[int, int]]:
        """Rows are divided among trees, so that more of them leave fewer rows for each."""
        if noiseless:
            yield 16, 10
            return
        yield from product((1, 2, 4, 8, 16, 32), range(1, 9))

    def check(self) -> None:
        """Refuse words that are not known, and numbers out of range."""
        super().check()
        self.parameters.check_words(variant=self.variants)

    def plan_level(self, nodes: LevelNodes) -> MedianLevel:
        """Plan the choice of attributes and medians."""
        return plan_level(nodes, self.variant, moments=self.task == "regression")

    def grow_level(self, growing: Growing, level: MedianLevel, by: Splitter) -> None:
        """Split the open nodes at medians."""
        grow_level(growing, level, self.variant, by)
