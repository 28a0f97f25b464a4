# SPDX-License-Identifier: Apache-2.0
"""ODP+FMPC-ID3 as the paper publishes it: exact splits that stay hidden, noise at the leaves alone. NOT PRIVATE.

The sound hidden tree is in ``secure.protocols.hidden_tree``, planned in ``secure.protocols.plans``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from veilwood.data.schema import Schema
from veilwood.errors import ParameterError
from veilwood.privacy.certificate import PrivacyCertificate, ServerParticipation, Spend, build_certificate
from veilwood.privacy.loss import exact_fraction
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.protocols.hidden_forest import plan_hidden_forest
from veilwood_secure.protocols.hidden_trees import HiddenTree, Recipe, draw_tree_noise, grow_hidden_tree
from veilwood_secure.protocols.records import Domain, SharedRows
from veilwood_secure.roles.public_programs import EXACT_SPLITS_REASON


class ExactHiddenSplitTreeNotPrivate:
    """A hidden tree whose splits are the exact best ones, exactly as Algorithms 1 to 4 print it. NOT PRIVATE.

    The servers see nothing; users see predictions, and those are not private. Use
    ``veilwood_secure.protocols.hidden_forest.plan_hidden_forest`` for anything but the paper's figures.

    Parameters
    ----------
    schema : Schema, path or dict
        What is public about the data.
    epsilon_in_paper : float
        The inverse of the scale of the noise on class counts of leaves. It is not a privacy loss.
    max_depth : int
        Levels of splits.

    Notes
    -----
    Guarantee

    None, as splits are chosen without noise: ``privacy_.is_private`` is False.

    Examples
    --------
    >>> import veilwood as vw
    >>> ExactHiddenSplitTreeNotPrivate(vw.datasets.car().schema, epsilon_in_paper=1.0, max_depth=2).privacy_.is_private
    False
    """

    def __init__(self, schema: Any, *, epsilon_in_paper: float = 1.0, max_depth: int = 3) -> None:
        self.schema = Schema.resolve(schema)
        self.epsilon_in_paper = exact_fraction(epsilon_in_paper, "epsilon_in_paper")
        if self.epsilon_in_paper <= 0:
            raise ParameterError("epsilon_in_paper", epsilon_in_paper, "must be above 0")
        self.recipe = Recipe(
            Domain.from_schema(self.schema), (None,) * max_depth, 1 / self.epsilon_in_paper, leaf_distribution="laplace"
        )

    @property
    def privacy_(self) -> PrivacyCertificate:
        """The certificate, which says that there is no guarantee."""
        sound = plan_hidden_forest(self.schema, epsilon=self.epsilon_in_paper, max_depth=self.recipe.depth).plan
        spend = Spend("none", 0, sound.loss, "not", not_private=EXACT_SPLITS_REASON)
        said = build_certificate(sound, spend, ServerParticipation("sampled", "rows"))
        return replace(said, mechanism="exact splits, discrete Laplace noise on class counts of leaves", composition=())

    def train(self, engine: Engine, records: SharedRows) -> HiddenTree:
        """Train in shares; nothing is opened, and nothing is promised."""
        return grow_hidden_tree(engine, records, self.recipe, draw_tree_noise(engine, self.recipe))
