# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: give it a schema and an epsilon, and it chooses the rest from public facts.

The choice is in ``recipes``; its methods are in ``counted_tables``, ``rounds``, and ``fine_cells`` with
``cell_forests``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from veilwood.bounded import is_whole
from veilwood.data.batches import Batch, Source
from veilwood.data.cluster.engines import anywhere, on_cluster
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Task
from veilwood.errors import ModelFileError, UtilityWarning, VeilwoodError
from veilwood.forests.adaptive import boosting, cell_effects, cell_forests, fine_cells, recipes
from veilwood.forests.adaptive import tables as counted_tables
from veilwood.forests.adaptive.effects import Effects, effects_of
from veilwood.forests.adaptive.fine_cells import CellPlan, FineCells
from veilwood.forests.adaptive.recipes import ROWS_SHARE, Recipe
from veilwood.forests.adaptive.rounds import RoundPlan, boost, plan_rounds
from veilwood.forests.adaptive.table_trees import Axis, CellTable, grow_tables
from veilwood.forests.adaptive.tables import Learned, TablePlan, draw_axes, plan_tables, tables_of
from veilwood.forests.base import Asked, BaseForest, Classifies, Design
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import sum_over_trees
from veilwood.trees.forest import Forest, public_generators
from veilwood.wording import shown

METHODS: Final = ("auto", "tables", "boosting", "cells")
MOST_ROWS: Final = 10**15
ROWS: Final = "number of rows"  # the step that buys it
LARGEST_VALUE: Final = 1e6  # that a leaf, or the start, can have; far more than any fit gives
SHOWN_SIZES: Final = (1_000, 30_000, 1_000_000)  # for a plan that does not know the number of rows

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Work(Design):
    """The public design. ``recipe`` is None while the number of rows is still to be bought."""

    asked: Asked
    recipe: Recipe | None
    axes: list[Axis]
    tables: TablePlan | None = None
    rounds: RoundPlan | None = None
    cells: CellPlan | None = None


def _public_rng(seed: int) -> np.random.Generator:
    (rng,) = public_generators(seed, 1)
    return rng


class _PrivateForest(BaseForest):
    """PrivateForest for either task."""

    forest_: Forest
    leaf_values_: Floats  # what each leaf adds to the scores
    leaf_errors_: Floats  # and the standard error of that, from the noise; not of fine cells
    start_: Floats  # the scores of a row about which nothing is known
    effects_: Effects  # of fine cells only: others are read off the leaves

    def __init__(
        self,
        schema: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        n_rows: int | None = None,
        privacy_unit: Any = "row",
        adjacency: str = "add-remove",
        method: str = "auto",
        random_state: Any = None,
        ledger: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.n_rows = n_rows
        self.privacy_unit = privacy_unit
        self.adjacency = adjacency
        self.method = method
        self.random_state = random_state
        self.ledger = ledger
        self.n_jobs = n_jobs

    # -- the plan ------------------------------------------------------------------------------------------------

    def _promise(self) -> tuple[Loss, Neighbours]:
        self._one_of("method", METHODS)
        if self.n_rows is not None and not is_whole(self.n_rows, 1, MOST_ROWS):
            raise VeilwoodError(
                f"n_rows={shown(self.n_rows)} must be a whole number of at least 1 and at most 10^15: the number of "
                "rows, or a guess at it, if that is public. Hint: leave it out, and a little budget buys it."
            )
        if self._task == "regression" and self.method in ("tables", "cells"):
            raise VeilwoodError(f"method={self.method!r} is for classes. Hint: leave method out.")
        return super()._promise()

    def _design(self, asked: Asked) -> _Work:
        schema, loss, neighbours = asked.schema, asked.loss, asked.neighbours
        encoding = Encoding(schema, "grid")
        if loss.epsilon is not None and self._uses_cells(encoding, loss, neighbours):
            loss = Loss.pure(loss.epsilon)  # cells need no delta
            self._check_cells(loss, neighbours)
        elif self.n_rows is None and loss.epsilon is not None and schema.classes and self.method != "boosting":
            loss = Loss.pure(loss.epsilon)  # tables may be chosen, and are far better off with Laplace noise
        if self.n_rows is not None:
            return self._work(asked, encoding, int(self.n_rows), loss)
        step = counting_step(ROWS, (1,), loss.part(ROWS_SHARE), neighbours, l1=1, squared_l2=1)
        n_columns = len(encoding.columns)
        sizes = {f"at {n:,} rows": self._choose(encoding, n, loss, neighbours).in_words(n_columns) for n in SHOWN_SIZES}
        plan = asked.plan(
            (step,),
            "the number of rows, with noise, and then, with the rest of the budget, what is chosen from it",
            Layout(),
            0.0,
            loss=loss,
            choices={"method": "chosen from the number of rows"},
            notes=sizes,
        )
        return _Work(encoding, _NO_FOREST, plan, asked, None, [])

    def _uses_cells(self, encoding: Encoding, loss: Loss, neighbours: Neighbours) -> bool:
        """Whether it is certain, before the number of rows may be bought, that cells will be used."""
        if self.method != "auto":
            return self.method == "cells"
        n_classes, reach = len(encoding.schema.classes), neighbours.l1(1)
        return recipes.uses_cells(encoding.columns, n_classes, self.n_rows, loss, reach)

    def _check_cells(self, loss: Loss, neighbours: Neighbours) -> None:
        """Refuse a budget too poor for cells while nothing is spent: they are planned once the rows are known."""
        least = recipes.poorest_for_cells(neighbours.l1(1))
        if loss.epsilon is not None and loss.epsilon < least:
            raise VeilwoodError(
                f"epsilon={float(loss.epsilon):g} is too little for method='cells', which needs {float(least):.3g} to "
                f"protect {neighbours}. Hint: leave method out."
            )

    def _choose(self, encoding: Encoding, n_rows: int, loss: Loss, neighbours: Neighbours) -> Recipe:
        wanted: Any = None if self.method == "auto" else self.method
        n_classes = len(encoding.schema.classes)
        return recipes.choose(encoding.columns, n_classes, n_rows, loss, wanted, neighbours.l1(1))

    def _work(self, asked: Asked, encoding: Encoding, n_rows: int, loss: Loss, bought: Plan | None = None) -> _Work:
        """Choose the method for so many rows and plan it, with what is left after the number of rows was bought."""
        neighbours = asked.neighbours
        recipe, n_classes = self._choose(encoding, n_rows, loss, neighbours), len(encoding.schema.classes)
        left = loss.part(1 - ROWS_SHARE) if bought else loss
        if bought:
            recipe = replace(recipe, gaussian=loss.delta > 0)
        elif not recipe.gaussian and loss.delta > 0 and loss.epsilon is not None:
            left = loss = Loss.pure(loss.epsilon)  # Laplace noise is the smaller one here, and needs no delta
        notes: dict[str, Any] = {"choice": recipe.in_words(len(encoding.columns))}
        if 0 < recipe.n_columns < len(encoding.columns):
            left_out = len(encoding.columns) - recipe.n_columns
            notes["not affordable"] = f"{left_out} of {len(encoding.columns)} columns"

        def planned(steps: tuple[Step, ...], released: str, n_trees: int, n_leaves: int, noise: float) -> Plan:
            layout = Layout(n_trees, n_leaves, rows_planned=n_rows, rows_known="measured" if bought else "declared")
            choices = {"method": recipe.method}
            if bought is None:
                return asked.plan(steps, released, layout, noise, loss=loss, choices=choices, notes=notes)
            return bought.refined(
                steps=(*bought.steps, *steps),
                released=f"the number of rows, with noise; {released}",
                layout=layout,
                expected_leaf_mse=noise,
                choices=choices,
                notes=notes,
            )

        if recipe.method == "boosting" or not n_classes:
            rounds = plan_rounds(encoding.columns, n_classes, recipe, left, neighbours)
            steps, n_tables = rounds.steps, len(rounds.rounds)
            n_leaves = sum(step.shape[0] for step in rounds.rounds)
            noise = rounds.rounds[-1].variance / rounds.count_units**2 if n_tables else steps[-1].variance
            begins = "class counts" if n_classes else "histograms of the target and of residuals"
            released = f"sums of gradients and of rows in {n_tables} tables, {begins}"
            released += f"{', histograms of numeric columns' if rounds.cuts else ''}, with noise"
            if not n_tables:
                released = "a histogram of the target, with noise"
            plan = planned(steps, released, n_tables, n_leaves, noise)
            return _Work(encoding, _NO_FOREST, plan, asked, recipe, [], rounds=rounds)
        if recipe.method == "cells":
            cells = fine_cells.plan_cells(encoding.columns, n_classes, n_rows, left, neighbours)
            released = f"of up to {cells.cells.shape[0]:,} cells those with a positive noisy count, and the counts; "
            released += "before that, class counts by column, with noise"
            plan = planned(cells.steps, released, cell_forests.n_trees(n_classes), 0, 0.0)
            return _Work(encoding, _NO_FOREST, plan, asked, recipe, [], cells=cells)
        axes = draw_axes(encoding.columns, recipe, _public_rng(asked.seed))
        tables = plan_tables(axes, recipe, n_classes, left, neighbours)
        n_tables = len(tables_of(axes, recipe))
        released = f"class counts of {n_tables} table{'s' * (n_tables > 1)}, with noise"
        if tables.histograms:
            released += ", histograms of numeric columns, by which they are cut"
        if tables.choices:
            released += ", and which columns they are of"
        plan = planned(tables.steps, released, n_tables, tables.counts.shape[0], tables.counts.variance)
        return _Work(encoding, _NO_FOREST, plan, asked, recipe, axes, tables)

    def _replanned(self) -> Plan:
        """Plan afresh, for as many rows as were bought, or are known."""
        chosen, asked = self.plan_.choices["method"], self._asked_again()
        same: _PrivateForest = copy(self)
        if self.method == "auto" and chosen in METHODS:
            same.method = chosen  # counting is chosen on a cluster
        work = same._design(asked)
        if work.recipe is None:
            n_rows = self.plan_.layout.rows_planned or 1
            work = same._work(asked, work.encoding, n_rows, work.plan.loss, work.plan)
        return work.plan

    # -- the data ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Self:
        """Train on a table, as every forest does; on a frame of a cluster classes are learned from tables.

        Boosting holds all rows in memory, as codes of one or two bytes for each column; fine cells hold one number for
        each row. On Dask, Spark and Ray rows stay where they are: tables are counted there, and regression is refused.

        Parameters
        ----------
        X, y
            As for every forest.

        Returns
        -------
        self
        """
        if not on_cluster(X) or self._one_of("method", METHODS) == "tables":
            return super().fit(X, y, **unsupported)
        if self._task == "regression" or self.method in ("boosting", "cells"):
            raise VeilwoodError(
                f"{type(self).__name__} holds all rows in memory for what is asked here, and the rows of a "
                "cluster stay there. Hint: RandomTrees or MedianForest count on clusters; or pass files or a sample."
            )
        counted: _PrivateForest = copy(self)
        counted.method = "tables"
        counted.fit(X, y, **unsupported)
        self._forget(self._fitted())
        self.__dict__.update({name: getattr(counted, name) for name in counted._fitted()})
        return self

    def _measure(self, design: Design, source: Source, door: Door) -> Learned | FineCells:
        assert isinstance(design, _Work)
        if design.recipe is None:
            step = design.plan.steps[0]
            (noisy,) = door.noisy(step, source.add_up(_count_rows, "counting rows", n_jobs=self.n_jobs))
            design = self._work(design.asked, design.encoding, max(1, int(noisy)), design.plan.loss, design.plan)
            door.refine(design.plan)
        encoding, recipe, rng = design.encoding, design.recipe, _public_rng(design.plan.public_seed)
        assert recipe is not None
        columns, n_classes = encoding.columns, len(encoding.schema.classes)
        if design.cells is not None:
            return fine_cells.measure(design.cells, columns, n_classes, source, door, rng)
        if design.tables is not None:
            return counted_tables.measure(design.tables, design.axes, columns, recipe, source, door, self.n_jobs)
        assert design.rounds is not None
        return boost(design.rounds, columns, n_classes, recipe, source, door, rng, self.n_jobs)

    def _learn(self, design: Design, released: Learned | FineCells) -> None:
        if isinstance(released, FineCells):
            n_classes, rng = len(design.encoding.schema.classes), _public_rng(design.plan.public_seed)
            grown = cell_forests.grow(released, n_classes, rng, self.n_jobs)
            self.forest_, self.leaf_values_, self.start_ = grown
            self.effects_ = cell_effects.effects_of_cells(grown, released, design.encoding, rng)
            return
        if self.plan_.choices["method"] == "prior":
            warnings.warn(
                "so few rows at this epsilon show nothing but how frequent the classes are, or the mean of the target, "
                "and that is all this model predicts. Hint: spend more epsilon, or gather more rows.",
                UtilityWarning,
                stacklevel=6,
            )
        self.start_ = released.start
        self.forest_, cells = grow_tables(released.tables or [CellTable(())])
        bounds = zip(self.forest_.tree_leaves[:-1], self.forest_.tree_leaves[1:], strict=True)
        places = [cells[first:last] for first, last in bounds]
        self.leaf_values_ = np.concatenate([v[at] for v, at in zip(released.values, places, strict=True)])
        self.leaf_errors_ = np.concatenate([e[at] for e, at in zip(released.errors, places, strict=True)])

    # -- predictions -----------------------------------------------------------------------------------------------

    @property
    def _of_cells(self) -> bool:
        return bool(self.plan_.choices["method"] == "cells")

    @property
    def _of_shares(self) -> bool:
        """Whether scores are class shares, and not their logarithms (``cell_forests.Grown``)."""
        return self._of_cells and not self.start_.any()

    def _scores(self, X: Any) -> Floats:
        codes = self._encode(X)
        return self.start_ + sum_over_trees(self.forest_, codes, self.leaf_values_, n_jobs=self.n_jobs)

    def explain(self) -> Effects:
        """Return main effects and the strongest interactions, with error bars from the noise. Free: post-processing.

        Returns
        -------
        Effects
            Print it, or look at it with ``veilwood.plots.plot_effects``.
        """
        check_is_fitted(self, "schema_")
        if self._of_cells:
            return self.effects_
        return effects_of(self.forest_, self.leaf_values_, self.leaf_errors_, self._encoding())

    def _encoding(self) -> Encoding:
        return Encoding(self.schema_, "grid")

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        told = cell_effects.to_arrays(self.effects_, self._encoding()) if self._of_cells else {
            "leaf_errors": self.leaf_errors_
        }  # fmt: skip
        return {**self.forest_.to_arrays(), "leaf_values": self.leaf_values_, "start": self.start_, **told}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        encoding = self._encoding()
        forest = Forest.from_arrays(arrays, encoding.n_codes)
        n_classes = len(self.schema_.classes)
        widths = {1} if not n_classes else {n_classes} if n_classes > 2 or self._of_cells else {1, 2}
        values, start = arrays.get("leaf_values"), arrays.get("start")
        if (
            values is None or start is None or values.dtype != np.float64 or start.dtype != np.float64
            or values.ndim != 2 or len(values) != forest.n_leaves or values.shape[1] not in widths
            or start.shape != values.shape[1:]
        ):  # fmt: skip
            raise ModelFileError("the values of the leaves are missing, or not as many numbers as there are leaves.")
        if not (np.abs(values).max(initial=0) < LARGEST_VALUE and np.abs(start).max(initial=0) < LARGEST_VALUE):
            raise ModelFileError("the values of the leaves, or the start, are no scores.")
        planned = cell_forests.most_leaves(n_classes) if self._of_cells else max(self.plan_.n_leaves, 1)
        if forest.n_leaves > planned:
            raise ModelFileError(f"{forest.n_leaves} leaves are more than the {planned} planned.")
        self.forest_, self.leaf_values_, self.start_ = forest, values, start
        if self._of_cells:
            shares = values.sum(axis=1)
            if not self._of_shares and abs(np.logaddexp.reduce(start)) > 1e-9:
                raise ModelFileError("the values of the leaves, or the start, are no logarithms of class shares.")
            if self._of_shares and (values.min() < 0 or shares.max() > 1 + 1e-9 or shares.min() <= 0):
                raise ModelFileError("the values of the leaves are no shares of classes.")
            self.effects_ = cell_effects.from_arrays(arrays, forest, encoding)
            return
        errors = arrays.get("leaf_errors")
        if (
            errors is None
            or errors.dtype != np.float64
            or errors.shape != values.shape
            or not np.isfinite(errors).all()
        ):
            raise ModelFileError("the errors of the leaves are missing, or not as many numbers as there are leaves.")
        self.leaf_errors_ = errors


_NO_FOREST: Final = grow_tables([CellTable(())])[0]  # structure is drawn, or learned, during the fit


def _count_rows(batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
    return np.array([sum(len(batch.target) for batch in batches)], np.int64)


_PARAMETERS = """
    Parameters
    ----------
    schema : Schema, path or dict
        The public facts about the table.
    epsilon, delta : float
        The privacy budget; delta=0 is pure epsilon. With delta above 0 large tables are learned better.
    n_rows : int, optional
        The number of rows, or a guess at it, where that is public; then ``plan()`` tells everything in advance.
        Otherwise a fiftieth of the budget buys it, and the method is chosen from the noisy answer.
    privacy_unit, adjacency
        Whom the guarantee protects (see the README).
    method : {"auto", "tables", "boosting", "cells"}
        Leave it: "auto" chooses by the rows that the noise is worth.
    random_state : int, optional
        Public randomness only: which columns meet in a table or a tree.
    ledger : Ledger or path, optional
        Where the spend is recorded.
    n_jobs : int, optional
        Threads.
"""


class PrivateForestClassifier(Classifies, _PrivateForest):  # noqa: D101
    __doc__ = f"""The classifier most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    Everything in the fitted model is computed from steps of the plan, whose losses add up to at most (epsilon, delta)
    (proofs/private-forest.md, attacked by tests/forests/test_private_forest.py, tests/forests/test_fine_cells.py
    and tests/audit/test_audit.py).

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, n_rows=len(car.X), random_state=0)
    >>> forest.plan().choices["method"]
    'tables'
    >>> forest.fit(car.X, car.y).predict_proba(car.X).shape
    (1728, 4)
    """
    _task: ClassVar[Task] = "classification"

    @anywhere
    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class. Free: computed from what was released."""
        scores = self._scores(X)
        return scores / scores.sum(axis=1, keepdims=True) if self._of_shares else boosting.probabilities(scores)

    @anywhere
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class. Free: computed from what was released."""
        scores = self._scores(X)
        chosen = (scores[:, 0] > 0).astype(int) if len(self.start_) == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.classifier_tags)


class PrivateForestRegressor(RegressorMixin, _PrivateForest):  # type: ignore[misc]  # noqa: D101
    __doc__ = f"""The regressor most people should use: it needs a schema and an epsilon and chooses the rest.
{_PARAMETERS}
    Notes
    -----
    Guarantee

    As for ``PrivateForestClassifier`` (proofs/private-forest.md, attacked by tests/forests/test_private_forest.py).

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> schema = vw.Schema.from_dict({{
    ...     "name": "line", "task": "regression", "target": "y", "columns": [
    ...         {{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}},
    ...         {{"name": "y", "kind": "numeric", "lower": 0, "upper": 1}}]}})
    >>> x = np.linspace(0, 1, 20_000)
    >>> forest = vw.PrivateForestRegressor(schema, epsilon=1.0, n_rows=20_000, random_state=0).fit(x[:, None], x)
    >>> bool(np.abs(forest.predict([[0.2], [0.8]]) - [0.2, 0.8]).max() < 0.1)
    True
    """
    _task: ClassVar[Task] = "regression"

    @anywhere
    def predict(self, X: Any) -> Floats:
        """Return predicted targets, inside the schema's bounds. Free: computed from what was released."""
        share = np.clip(self._scores(X)[:, 0], 0.0, 1.0)
        return self._encoding().decode_target(share * TARGET_LEVELS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._tags(tags, tags.regressor_tags)
