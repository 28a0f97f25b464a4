# SPDX-License-Identifier: Apache-2.0
"""Series of releases: a model every month or week, with one privacy loss for all of them.

Each release counts the rows of all periods so far with the integer weights of a factor of time
(``privacy.time_factors``), adds fresh noise, and estimates the counts from all measurements of the series. The state of
a series consists of its plan and the noisy measurements: nothing in it is secret.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as write_safetensors

from veilwood import estimators
from veilwood.arrays import Ints
from veilwood.data.batches import Batch, select_rows
from veilwood.data.canonical import to_canonical_texts
from veilwood.data.columns import Column
from veilwood.data.counts import CellQuery, KeyedRowHash, RunCellQueries, Split, SumKind
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.errors import (
    LedgerError,
    ModelFileError,
    ParameterError,
    PlanError,
    UseError,
    UtilityWarning,
    VeilwoodError,
    short_repr,
)
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Design, Method, OnePassMethod
from veilwood.estimators.parameters import parameters_in_file, to_plain_value
from veilwood.forests.auto_size import AutoSized, WithTotals
from veilwood.models.file import sort_header
from veilwood.privacy import time_factors
from veilwood.privacy.accountant import handle_of, warn_of_weak_guarantee
from veilwood.privacy.certificate import Spend, build_certificate
from veilwood.privacy.door import Measurement, SeriesDoor
from veilwood.privacy.entropy import random_integers
from veilwood.privacy.ledger import Entry, Ledger, exact_loss
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import EACH_TO_ONE_TREE, Plan
from veilwood.privacy.steps import Step
from veilwood.safe_io import is_int_in, read_file, read_json, write_file
from veilwood.trees.counting import ColumnAssignment, LeafCount
from veilwood.trees.random import public_seed

FORMAT: Final = "veilwood series 1"
PERIOD_COLUMN, TREE_COLUMN = "period of arrival", "tree of the row"  # names of the two added columns in the encoding
ROWS_AT_ONCE: Final = 1 << 16  # maximum number of rows with equal weight that are counted in one call
_MAX_FILE_BYTES: Final = 1 << 33


# -- weighted counts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class PeriodCount:
    """Weighted sum of another count over periods: a ``Count`` that databases and clusters can run as well.

    ``weights`` has one integer per code of ``column``; rows of weight 0 are not counted.
    """

    inner: Any
    column: int
    weights: tuple[int, ...]

    def __call__(self, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
        """Return the weighted sums of the batches."""
        total: Ints = self.inner([], n_jobs=n_jobs)
        pending: dict[int, list[Batch]] = {}
        weights = np.array(self.weights, np.int64)
        for batch in batches:
            of_rows = weights[batch.codes[:, self.column]]
            for weight in np.unique(of_rows[of_rows > 0]).tolist():
                some = pending.setdefault(weight, [])
                some.append(select_rows(batch, of_rows == weight))
                if sum(len(each.target) for each in some) >= ROWS_AT_ONCE:
                    total = total + weight * self.inner(pending.pop(weight), n_jobs=n_jobs)
        for weight, some in pending.items():
            total = total + weight * self.inner(some, n_jobs=n_jobs)
        return total

    def via_cell_queries(self, run_queries: RunCellQueries, n_codes: Sequence[int]) -> Ints:
        """Return the weighted sums from cell queries that split every cell by period."""

        def run_weighted(
            queries: Sequence[CellQuery], kind: SumKind, row_hash: KeyedRowHash | None = None
        ) -> list[Ints]:
            by_period = [
                CellQuery((*query.rules, self._period_rule(query.n_cells)), query.n_cells * len(self.weights))
                for query in queries
            ]
            answers = run_queries(by_period, kind, row_hash)
            return [
                np.tensordot(np.array(self.weights, np.int64), answer.reshape(len(self.weights), query.n_cells, -1), 1)
                for query, answer in zip(queries, answers, strict=True)
            ]

        sums: Ints = self.inner.via_cell_queries(run_weighted, n_codes)
        return sums

    def _period_rule(self, n_cells: int) -> Split:
        targets = tuple(period * n_cells if weight else None for period, weight in enumerate(self.weights))
        return Split(self.column, tuple(range(len(targets))), targets)


def assign_trees(ids: Any, key: bytes, n_trees: int) -> Ints:
    """Return a tree for each row, from 0, by a keyed hash of its id: the column that disjoint trees need.

    The custodian keeps the key beside the table and adds new rows under the same key. Accuracy needs the key to be
    random; privacy needs only that the tree of a row does not depend on other rows.

    Parameters
    ----------
    ids : array-like
        One id per row that never changes, such as the number of a case.
    key : bytes
        At least 16 random bytes, such as ``secrets.token_bytes(32)``.
    n_trees : int
        Number of trees of the estimator.

    Examples
    --------
    >>> trees = assign_trees(["case 7", "case 8", "case 7"], b"sixteen bytes ok", 8)
    >>> bool(trees[0] == trees[2]), trees.dtype
    (True, dtype('int64'))
    """
    if not isinstance(key, bytes) or not 16 <= len(key) <= 64:
        raise ParameterError("key", "...", "must be 16 to 64 bytes", "use secrets.token_bytes(32)")
    if not is_int_in(n_trees, 1, 1 << 16):
        raise ParameterError("n_trees", n_trees, "must be the number of trees")
    texts = to_canonical_texts(ids)
    if not all(isinstance(text, str) for text in texts):
        raise ParameterError("ids", "...", "has a missing or unusable id", "give every row an id of its own")
    digests = (hashlib.blake2b(str(text).encode(), digest_size=8, key=key).digest() for text in texts)
    return np.array([int.from_bytes(digest) % n_trees for digest in digests], np.int64)


# -- the series --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Record:
    """Noisy measurements of one release, by step, and the numbers of the releases that were lost before it."""

    values: dict[str, Ints]
    lost: tuple[int, ...]


class _Replay:
    """Substitute for a release door. Returns estimates from earlier measurements instead of new noisy counts."""

    def __init__(self, estimates: Mapping[str, Ints]) -> None:
        self.estimates = estimates

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        """Return the estimated counts of a step. Ignores ``exact``."""
        return self.estimates[step.name]


class _SeriesReleases:
    """Adapter that passes a method's counts to the release door of the series and stores the noisy results."""

    def __init__(self, door: SeriesDoor) -> None:
        self.door, self.noisy = door, dict[str, Ints]()

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        """Release weighted counts."""
        (planned,) = (each for each in self.door.plan.steps if each.name == step.name)
        self.noisy[step.name] = self.door.release_counts(planned, exact)
        return self.noisy[step.name]


class ReleaseSeries:
    """Series of models, one per month or week, with one privacy loss for all of them.

    Every release learns from all rows so far. The releases share their measurements, so their noise is far smaller than
    if the privacy loss were divided by the number of releases: with Gaussian noise by a factor of 2.1 for 12 releases
    and of 3.5 for 52. The loss is charged once, when the first release is made.

    Parameters
    ----------
    estimator : RandomTreesClassifier, RandomTreesRegressor, MatrixForestClassifier or PrivateForestClassifier
        Unfitted estimator with its schema and the privacy loss of the whole series. PrivateForest, and a size of
        "auto", need ``n_rows``, the expected number of rows. PrivateForest chooses a table of class counts for each
        column in the first release, with a tenth of the loss, and uses these tables in all releases, without rounds.
    releases : int
        Number of releases, up to 104.
    period : str or Column
        Column of the table with the period in which each row arrived, numbered 1, 2, ... For other values, pass a
        categorical ``Column`` whose categories are in order of time, such as
        ``vw.Column("admitted", "categorical", values=["2026-01", "2026-02"], prefix=7)``.
    ledger : Ledger or path
        Ledger to charge. It also holds one entry per release, so that no period is measured twice.
    strategy : {"auto", "toeplitz", "banded", "optimized", "splitting"}
        How periods are weighted (``privacy.time_factors``). "auto" chooses the smallest expected error.
    objective : {"largest", "mean"}
        Whether to minimise the largest or the mean variance over the releases.
    bands : int, optional
        Number of diagonals of "banded".
    tree_column : str, optional
        Column with the index of each row's tree, from 0. Required for disjoint trees; see ``assign_trees``.

    Notes
    -----
    Guarantee

    All releases together are (epsilon, delta)-private for the unit of the estimator, even if later rows depend on
    earlier models: proofs/release-series.md, attacked by packages/veilwood/tests/test_series_attacks.py.

    Removing rows, such as those of a person who withdraws consent, spends no budget: later releases do not count them.
    A row that arrives late is counted from then on with the weights of its period. The guarantee treats a row that
    changes within its period as one row, and a row whose period changes as two. If an id may contribute at most k rows,
    its first k rows in time are counted.

    Examples
    --------
    >>> import numpy as np, veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=3, delta=1e-6, n_estimators=8, max_depth=3,
    ...                                   trees="shared", random_state=0)
    >>> series = vw.ReleaseSeries(forest, releases=12, period="month", ledger=vw.MemoryLedger())
    >>> table = car.X.assign(month=np.arange(len(car.X)) % 12 + 1)
    >>> first, second = series.release(table, car.y), series.release(table, car.y)
    >>> second.privacy_.epsilon, series.numbers
    (3.0, [1, 2])
    """

    def __init__(
        self,
        estimator: BaseForest,
        *,
        releases: int,
        period: str | Column,
        ledger: Any = None,
        strategy: str = "auto",
        objective: str = "largest",
        bands: int | None = None,
        tree_column: str | None = None,
    ) -> None:
        if not hasattr(type(estimator), "_method_class") or hasattr(estimator, "plan_"):
            raise UseError(
                "estimator must be an unfitted estimator. Hint: pass one such as "
                "vw.RandomTreesClassifier(schema, epsilon=3)."
            )
        if strategy not in ("auto", *time_factors.STRATEGIES):
            raise ParameterError(
                "strategy",
                strategy,
                "must be a known strategy",
                f"choose auto or one of {', '.join(time_factors.STRATEGIES)}",
            )
        if objective not in time_factors.OBJECTIVES:
            raise ParameterError("objective", objective, "must be 'largest' or 'mean'")
        self._estimator = _copy_of(estimator)
        self._ledger: Ledger | None = _given_ledger(estimator.ledger if ledger is None else ledger)
        self._schema, reason = estimator._resolve_schema()
        if reason is not None:
            raise UseError(f"a series needs a declared schema: {reason}.")
        self._method: OnePassMethod[Any] = self._estimator._make_method().for_series()  # type: ignore[assignment]
        self._records: dict[int, _Record] = {}
        self._choice: Ints | None = None
        self._opened: dict[str, Any] | None = None
        self._path: Path | None = None
        if not is_int_in(releases, 1, time_factors.MAX_RELEASES):
            raise ParameterError("releases", releases, f"must be an integer from 1 to {time_factors.MAX_RELEASES}")
        column = period if isinstance(period, Column) else Column(period, "categorical", values=_texts(1, releases))
        described = {**column.to_dict(), "name": PERIOD_COLUMN, "of": column.source}
        if column.kind != "categorical" or column.nullable or column.other is not None:
            raise ParameterError("period", column, "must be a categorical column with one category per period")
        if len(column.values) != releases:
            raise ParameterError(
                "period",
                column,
                f"has {len(column.values)} periods, but releases={releases}",
                "make both numbers equal",
            )
        seed = public_seed(estimator.random_state)
        self._terms, self._opening = self._choose_terms(
            seed, described, int(releases), strategy, objective, bands, tree_column
        )
        self._design = self._opening  # unless a choice follows
        self._check_columns()

    # -- the plan --------------------------------------------------------------------------------------------------

    def _choose_terms(
        self, seed: int, period: dict[str, Any], releases: int, strategy: str, objective: Any, bands: int | None,
        tree_column: str | None,
    ) -> tuple[time_factors.SeriesTerms, Design]:  # fmt: skip
        """Choose accounting and strategy by expected error, and design the forest for the noise of the series."""
        requested = self._requested
        options = []
        for law in ("pure", "zcdp") if requested.delta > 0 else ("pure",):
            squared = law == "zcdp"
            errors = time_factors.compare_factors(releases, objective, squared=squared, bands=bands)
            name: Any = min(errors, key=errors.__getitem__) if strategy == "auto" else strategy
            factor = time_factors.make_factor(name, releases, objective, squared=squared, bands=bands)
            terms = time_factors.SeriesTerms(
                _new_id(), period, tree_column, name, objective, law, factor,
                errors=errors,  # type: ignore[arg-type]
            )  # fmt: skip
            decisions = {"law": "zcdp"} if squared else {}
            design = self._make_design(terms, seed, decisions)
            options.append((terms.plan_of_series(design.plan, requested).expected_leaf_mse, terms, design))
        _, terms, design = min(options, key=lambda option: option[0])
        return terms, design

    @property
    def _requested(self) -> Loss:
        """The privacy loss of the whole series, as declared on the estimator."""
        loss = self._estimator._requested_privacy(self._schema)[0]
        if loss.epsilon is None:
            raise ParameterError("epsilon", "inf", "must be finite in a series", "choose a number such as 3")
        return loss

    def _make_design(self, terms: time_factors.SeriesTerms, seed: int, decisions: Mapping[str, Any]) -> Design:
        request = self._estimator._fit_request(self._schema, seed, decisions)
        method: Method[Any] = self._method
        if isinstance(method, AutoSized) and method.parameters.n_rows is None and "n_estimators" not in decisions:
            raise ParameterError(
                "n_estimators", "auto", "needs n_rows: the size is chosen once for the whole series",
                "declare the expected number of rows, such as n_rows=20_000, or choose n_estimators and max_depth",
            )  # fmt: skip
        design: Design = method.make_design(replace(request, loss=terms.design_loss(self._requested)))
        return design

    def _check_columns(self) -> None:
        disjoint = self._design.plan.layout.records == EACH_TO_ONE_TREE
        if disjoint and self._terms.tree_column is None:
            raise ParameterError(
                "trees", "disjoint", "requires every row to stay in the same tree in all releases",
                "set trees='shared', or pass tree_column with the column that vw.assign_trees computes from a key",
            )  # fmt: skip
        if not disjoint and self._terms.tree_column is not None:
            raise ParameterError("tree_column", self._terms.tree_column, "does not apply to shared trees", "remove it")

    def plan(self, number: int = 0) -> Plan:
        """Return the plan of the whole series, or of one release. Reads no data and spends no budget.

        The plan of the series can be saved and signed before the first release. The certificate of every release
        identifies it.
        """
        designed, opening = (self._design if number else self._opening).plan, self._opening.plan
        return self._terms_of(number).plan_of_series(designed, self._requested, opening)

    def _terms_of(self, number: int) -> time_factors.SeriesTerms:
        lost = tuple(each for each in range(1, number) if each not in self._records)
        return replace(self._terms, release=number, factor=replace(self._terms.factor, lost=lost))

    # -- releases --------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """Numbers of the releases that have been made."""
        return sorted(self._records)

    @property
    def is_open(self) -> bool:
        """Whether the privacy loss of the series has been charged."""
        return self._opened is not None

    @property
    def n_releases(self) -> int:
        """Number of planned releases."""
        return self._terms.factor.releases

    def release(self, X: Any, y: Any = None, *, number: int | None = None) -> BaseForest:
        """Measure the rows for the next release, once, and return an estimator fitted on all rows so far.

        The first call charges the privacy loss of the whole series. A release that already exists is returned again
        without reading a row. If the process dies during a release, the ledger keeps the attempt. Resolve its entry
        (``veilwood ledger resolve``) and continue with the next release, which counts the rows of both periods.

        Parameters
        ----------
        X, y : as in ``fit``
            The table with all rows so far, and the column of periods. Rows of later periods are not counted yet.
        number : int, optional
            Number of the release, from 1. Pass it in a job that may run twice. Default: the next release.
        """
        ledger = self._require_ledger()
        self._read_again()
        self._check_charge(ledger)
        if number is not None and number in self._records:
            return self.model(number)
        following = self._next_number(ledger)
        if number is not None and number != following:
            raise UseError(
                f"release {short_repr(number)} is not the next release of this series. Hint: pass number={following}."
            )
        self._open(ledger, X)
        if (step := self._choice_step) is not None and self._choice is None:
            self._choose(ledger, X, y, step)
        plan = self.plan(following)
        with SeriesDoor(plan, ledger, self._key(following), table=handle_of(X)) as door:
            exact = self._count_rows(X, y, self._make_count(), following)
            released = _SeriesReleases(door)
            self._method.release_sums(self._design, exact, released)  # type: ignore[arg-type]
            self._check_reserved(ledger, self._key(following))
            self._records[following] = _Record(released.noisy, plan_lost(plan))
            self._keep()
        made = self.model(following)
        warn_of_weak_guarantee(made.privacy_.epsilon)
        return made

    def _choose(self, ledger: Ledger, X: Any, y: Any, step: Step) -> None:
        """Measure what the trees are chosen by, once, on the rows of the first period, and design them.

        If the process dies in between, and its entry is resolved, the trees are those that follow without rows.
        """
        entry = ledger.find(self._choice_key)
        if entry is not None and entry.state == "resolved":
            return
        if entry is not None and entry.state == "committed":
            raise _older_copy(ledger, "the choice")
        with SeriesDoor(self.plan(), ledger, self._choice_key, table=handle_of(X)) as door:
            first = (1, *(0,) * (self.n_releases - 1))
            exact = self._count_rows(X, y, self._method.make_choice_count(self._design), weights=first)  # type: ignore[attr-defined]
            noisy = door.release_counts(step, exact)
            self._check_reserved(ledger, self._choice_key)
            self._apply_choice(step, noisy)
            self._keep()

    def _apply_choice(self, step: Step, noisy: Ints) -> None:
        """Store a noisy choice of tables and design the trees for it."""
        decisions = self._method.choose(self._opening, noisy, step.variance)  # type: ignore[attr-defined]
        self._choice = noisy
        self._design = self._make_design(self._terms, self._opening.plan.public_seed, decisions)

    @property
    def _choice_step(self) -> Step | None:
        """Step that chooses the trees from the rows, or None if they are designed without rows."""
        kind = time_factors.SeriesStep.CHOICE.key
        return next((step for step in self.plan().steps if step.kind == kind), None)

    def _keep(self) -> None:
        if self._path is not None:
            self._write(self._path)

    def _count_rows(self, X: Any, y: Any, count: Any, number: int = 0, weights: tuple[int, ...] | None = None) -> Ints:
        """Return the sums of a count over all rows, each with the weight of its period in a release."""
        weights = self._terms_of(number).factor.period_weights(number) if weights is None else weights
        encoding, unit = self._timed_encoding(), self._opening.plan.neighbours.unit
        source = open_rows(X, y, encoding, unit=unit, invalid=self._estimator.invalid)
        weighted = PeriodCount(count, len(self._schema.features), weights)
        return source.aggregate(weighted, n_jobs=self._estimator.n_jobs)

    def model(self, number: int | None = None) -> BaseForest:
        """Return the fitted estimator of a past release, by default the last. Reads no data and spends no budget."""
        number = max(self._records, default=0) if number is None else number
        if number not in self._records or self._opened is None:
            raise UseError(
                f"release {short_repr(number)} of this series has not been made. Hint: call release() first."
            )
        plan, terms = self.plan(number), self._terms_of(number)
        if self._records[number].lost != terms.factor.lost:
            raise ModelFileError(
                "the series lacks measurements that later releases need. Hint: restore a backup of it."
            )
        records = [self._records[each].values for each in terms.factor.measured(number)]
        estimates = {
            name: time_factors.estimate_counts(terms.factor, number, [values[name] for values in records])
            for name in self._repeated_steps
        }
        exact = self._method.make_count(self._design)([])
        released = self._method.release_sums(self._design, exact, _Replay(estimates))  # type: ignore[arg-type]
        model = _copy_of(self._estimator)
        opened = self._opened
        spend = Spend(
            opened["ledger"], opened["entry"], plan.loss, opened["durability"], opened["not_private"], plan.opened_as
        )
        model.privacy_, model.plan_ = build_certificate(plan, spend), plan
        chosen = {} if self._choice is None else {self._choice_step.name: self._choice}  # type: ignore[union-attr]
        model.measurements_ = tuple(Measurement(name, (values,)) for name, values in {**chosen, **estimates}.items())
        learned = self._method.build_model(self._design, plan, released, model.n_jobs)
        model._set_model(self._schema, learned)
        warning = self._method.utility_warning(plan, learned)
        if warning is not None:
            warnings.warn(warning, UtilityWarning, stacklevel=3)
        return model

    @property
    def _repeated_steps(self) -> list[str]:
        """Names of the steps of every release."""
        once = time_factors.SeriesStep.CHOICE.key
        return [step.name for step in self._design.plan.steps if step.kind != once]

    def _timed_encoding(self) -> Encoding:
        """Return the encoding of the rows with their periods and, if trees are disjoint, their trees."""
        columns = [Column(**self._terms.period)]
        if self._terms.tree_column is not None:
            trees = _texts(0, self._design.plan.layout.trees - 1)
            columns.append(Column(TREE_COLUMN, "categorical", values=trees, of=self._terms.tree_column))
        schema = replace(self._schema, features=(*self._schema.features, *columns))
        return Encoding(schema, self._design.encoding.numeric, first_by=PERIOD_COLUMN)

    def _make_count(self) -> Any:
        """Return the step that counts rows in the trees, without the weights of periods."""
        count: Any = self._method.make_count(self._design)
        if self._terms.tree_column is not None:
            trees = ColumnAssignment(len(self._schema.features) + 1, self._design.plan.layout.trees)
            leaves = count.inner_count if isinstance(count, WithTotals) else count
            assert isinstance(leaves, LeafCount)
            leaves = replace(leaves, assignment=trees)
            count = replace(count, inner_count=leaves) if isinstance(count, WithTotals) else leaves
        return count

    # -- the ledger ------------------------------------------------------------------------------------------------

    def _key(self, number: int) -> str:
        """Return the key of a release in the ledger; number 0 is the series itself."""
        return f"series {self._terms.id}" + (f": release {number} of {self.n_releases}" if number else "")

    @property
    def _choice_key(self) -> str:
        return f"series {self._terms.id}: choice"

    def _require_ledger(self) -> Ledger:
        if self._ledger is None or self._ledger.durability == "not":
            raise ParameterError(
                "ledger", None, "is required: it prevents a period from being measured twice", "pass a path or a Ledger"
            )
        return self._ledger

    def _next_number(self, ledger: Ledger) -> int:
        """Return the number of the next release. Raise LedgerError if an attempt is still reserved."""
        entries = {entry.key: entry for entry in ledger.entries() if entry.is_counted and entry.key}
        for number in range(1, self.n_releases + 1):
            if number in self._records:
                continue
            entry: Entry | None = entries.get(self._key(number))
            if entry is None:
                if number < max(self._records, default=0):
                    raise LedgerError(
                        f"{ledger.name} is not the ledger of this series, or is an older copy of it. Hint: pass the "
                        "ledger that the series was charged to."
                    )
                return number
            if entry.state == "reserved":
                raise LedgerError(
                    f"release {number} is being measured, or its process died: {ledger.name}, entry {entry.id}. Hint: "
                    f"if no process is running, run veilwood ledger resolve LEDGER {entry.id}. The period is not "
                    "measured again; the next release counts its rows."
                )
            if entry.state == "committed":
                raise _older_copy(ledger, f"release {number}")
        raise UseError("all releases of this series have been made. Hint: plan a new series.")

    def _check_reserved(self, ledger: Ledger, key: str) -> None:
        """Raise LedgerError if the attempt was resolved in the meantime, because a resolved attempt counts as lost."""
        entry = ledger.find(key)
        if entry is None or entry.state != "reserved":
            raise LedgerError(
                f"the ledger entry of {key} was resolved during the release, so the release is lost. "
                "Hint: continue with the next release."
            )

    def _check_charge(self, ledger: Ledger) -> None:
        """Raise LedgerError if the ledger has an entry for this series that was charged for a different plan.

        Otherwise, anyone able to write the file could change the loss or the periods of a series already charged.
        """
        entry, plan, opened = ledger.find(self._key(0)), self.plan(), self._opened
        if opened is not None and (entry is None or entry.id != opened["entry"]):
            raise LedgerError(
                f"{ledger.name} is not the ledger that this series was charged to. Hint: pass that ledger."
            )
        if entry is not None and (entry.plan != plan.fingerprint() or entry.loss != exact_loss(plan.loss)):
            raise LedgerError(
                f"entry {entry.id} of {ledger.name} was charged for a different plan: the series has been changed "
                "since. Hint: restore the original file of the series, or plan a new series."
            )

    def _open(self, ledger: Ledger, X: Any) -> None:
        """Charge the privacy loss of the whole series, once."""
        if self._opened is not None:
            return
        spend = SeriesDoor.open_series(self.plan(), ledger, self._key(0), table=handle_of(X))
        self._opened = {
            "ledger": spend.ledger, "entry": spend.entry, "durability": spend.durability,
            "not_private": spend.not_private,
        }  # fmt: skip
        self._check_charge(ledger)  # another process may have charged the series in the meantime
        self._keep()

    # -- what the guarantee covers ---------------------------------------------------------------------------------

    def withdrawn(self) -> str:
        """Return a statement on how the guarantee covers removed rows, for people who withdraw consent."""
        plan = self.plan()
        unit, made = plan.neighbours.unit, len(self._records)
        return (
            f"Series {self._terms.id}: {made} of {self.n_releases} releases made, all of them together under "
            f"{plan.loss} for {unit}. Rows that are removed from the table are not counted in any later release. The "
            "guarantee covers their contribution to earlier releases: whatever anyone concludes from all releases, "
            "they would have concluded with about the same probability had these rows never been in the table. "
            "Removing rows spends no budget and is not recorded: neither the series nor the ledger contains whether, "
            "when or whose rows were removed. Models that were released stay unchanged."
        )

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the series to a file. From then on, every release is written to the file before it is returned."""
        self._path = Path(path)
        self._write(self._path)

    def _write(self, path: Path) -> None:
        given = self._estimator.get_params(deep=False)
        listed = parameters_in_file(type(self._estimator))
        arrays = {
            f"{number} {place}": np.ascontiguousarray(values)
            for number, record in self._records.items()
            for place, values in enumerate(record.values.values())
        }
        if self._choice is not None:
            arrays["choice"] = np.ascontiguousarray(self._choice)
        state = {
            "estimator": type(self._estimator).__name__,
            "parameters": {name: to_plain_value(name, value) for name, value in given.items() if name in listed},
            "schema": self._schema.to_dict(),
            "plan": self.plan().to_dict(),
            "opened": self._opened,
            "steps": self._repeated_steps,
            "lost": {str(number): list(record.lost) for number, record in self._records.items()},
        }
        text = json.dumps(state, sort_keys=True)
        metadata = {"format": FORMAT, "series": text, "sha256": _digest(text, arrays)}
        write_file(path, sort_header(write_safetensors(arrays, metadata)))

    @classmethod
    def load(cls, path: str | PathLike[str], *, ledger: Any = None) -> ReleaseSeries:
        """Read a series from a file. Its plan is computed again and must equal the plan in the file.

        Parameters
        ----------
        path : path
            The file. Later releases are written to it.
        ledger : Ledger or path, optional
            The ledger that the series was, or will be, charged to. Required for later releases.
        """
        state, arrays = _read_state(Path(path))
        try:
            family = getattr(estimators, state["estimator"]) if state["estimator"] in estimators.__all__ else None
            parameters = dict(state["parameters"])
            if family is None or not parameters_in_file(family).issuperset(parameters):
                raise ModelFileError("this version does not know the estimator of the series. Hint: update veilwood.")
            schema, plan = Schema.from_dict(state["schema"]), Plan.from_dict(state["plan"])
            series = cls.__new__(cls)
            series._estimator = family(schema=schema, **parameters)
            series._ledger = _given_ledger(ledger)
            series._schema, series._method = schema, series._estimator._make_method().for_series()  # type: ignore[assignment]
            series._path, series._opened, series._records, series._choice = Path(path), state["opened"], {}, None
            series._terms = time_factors.SeriesTerms.from_choices(plan.choices["series"])
            decisions = time_factors.own_decisions(plan)
            series._design = series._opening = series._make_design(series._terms, plan.public_seed, decisions)
            series._check_columns()
            if differs := plan.differences(series.plan()):
                raise PlanError(
                    f"the plan in the file differs from the plan computed from its parameters: {'; '.join(differs)}. "
                    "Hint: load it with the version that wrote it, or restore a backup."
                )
            step = series._choice_step
            if step is not None and "choice" in arrays:
                if not step.may_release([arrays["choice"]]):
                    raise ModelFileError("the choice does not match the plan. Hint: restore a backup of the file.")
                series._apply_choice(step, arrays["choice"])
            shapes = {step.name: step.shape for step in series._design.plan.steps if step.name in state["steps"]}
            for number, lost in state["lost"].items():
                values = {name: arrays[f"{number} {place}"] for place, name in enumerate(state["steps"])}
                fits = {name: value.shape for name, value in values.items()} == shapes
                if not fits or any(value.dtype != np.int64 for value in values.values()):
                    raise ModelFileError("the measurements do not match the plan. Hint: restore a backup of the file.")
                series._records[int(number)] = _Record(values, tuple(lost))
            if not all(is_int_in(number, 1, series.n_releases) for number in series._records):
                raise ModelFileError(
                    "the series has releases that were not planned. Hint: restore a backup of the file."
                )
        except VeilwoodError as error:
            raise ModelFileError(f"cannot load {short_repr(str(path))}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(f"cannot load {short_repr(str(path))}: {type(error).__name__}.") from None
        if series._ledger is not None:
            series._check_charge(series._ledger)
        return series

    def _read_again(self) -> None:
        """Add the releases that another process has written to the file in the meantime."""
        if self._path is None or not self._path.exists():
            return
        other = type(self).load(self._path)
        if other.plan() != self.plan():
            raise ModelFileError(
                f"{short_repr(str(self._path))} now contains another series. Hint: save to another file."
            )
        self._records.update(other._records)
        if other._choice is not None:
            self._choice, self._design = other._choice, other._design
        self._opened = other._opened or self._opened

    def __repr__(self) -> str:
        made = ", ".join(map(str, self.numbers)) or "none"
        return f"ReleaseSeries({self._estimator!r}, releases={self.n_releases}; made: {made})"


def _older_copy(ledger: Ledger, what: str) -> ModelFileError:
    return ModelFileError(
        f"{ledger.name} holds {what}, and this copy of the series does not. Hint: load the file that it was written to."
    )


def _texts(first: int, last: int) -> tuple[str, ...]:
    """Return integers as strings: the categories of the period and tree columns."""
    return tuple(str(number) for number in range(first, last + 1))


def _new_id() -> str:
    """Return a random public identifier that distinguishes series in a ledger."""
    return f"{int(random_integers(1)[0]):016x}"


def plan_lost(plan: Plan) -> tuple[int, ...]:
    """Return the numbers of the releases that were lost before the release of this plan."""
    return time_factors.SeriesTerms.from_choices(plan.choices["series"]).factor.lost


def _copy_of(estimator: BaseForest) -> BaseForest:
    """Return an unfitted copy without a ledger, so that it cannot charge a separate fit.

    Parameters are copied too: a later change in place, such as to a unit, must not affect the series.
    """
    return type(estimator)(**deepcopy({**estimator.get_params(deep=False), "ledger": None}))


def _given_ledger(ledger: Any) -> Ledger | None:
    return None if ledger is None else open_ledger(ledger)


def _digest(text: str, arrays: Mapping[str, Ints]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return digest.hexdigest()


def _read_state(path: Path) -> tuple[dict[str, Any], dict[str, Ints]]:
    """Return the state and the measurements in a file. Raise ModelFileError if the checksum is wrong."""
    try:
        content = read_file(path, _MAX_FILE_BYTES)
        header = read_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata, arrays = header["__metadata__"], parse_safetensors(content)
        if metadata["format"] != FORMAT or metadata["sha256"] != _digest(metadata["series"], arrays):
            raise ModelFileError("it is damaged or was written by another version")
        state = read_json(metadata["series"])
        if not isinstance(state, dict):
            raise ModelFileError("it is damaged")
        return state, arrays
    except OSError as error:
        raise ModelFileError(f"cannot read {short_repr(str(path))}: {error.strerror or error}.") from None
    except (SafetensorError, VeilwoodError, KeyError, TypeError, ValueError, MemoryError) as error:
        text = str(error) if isinstance(error, VeilwoodError) else "the file is not a series"
        raise ModelFileError(f"cannot read {short_repr(str(path))} as a series: {text}.") from None
