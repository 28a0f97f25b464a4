# SPDX-License-Identifier: Apache-2.0
"""Differentially private hyperparameter search: ``PrivateSearch``, the counterpart of ``GridSearchCV``.

The mechanism, random stopping, is in ``privacy.selection``. A search without data is ``veilwood.tune``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from veilwood import progress
from veilwood.data.batches import Source
from veilwood.data.contributions import IdFilter
from veilwood.data.encoding import class_labels
from veilwood.data.open_rows import open_rows
from veilwood.errors import ParameterError, PlanError, UseError
from veilwood.estimators.base import BaseForest
from veilwood.estimators.class_weights import explicit_weights, weighted_model
from veilwood.estimators.method import Design, Method
from veilwood.estimators.parameters import SharedParameters, searchable_parameters, to_plain_value
from veilwood.evaluation.evaluate import HoldoutSplit
from veilwood.evaluation.quality import estimate_quality
from veilwood.evaluation.scoring import Scoring
from veilwood.privacy.accountant import handle_of, warn_of_weak_guarantee
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import Door, TrialDoor
from veilwood.privacy.entropy import draw_below
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.release import Release
from veilwood.privacy.selection import RandomStopping, TrialBudget
from veilwood.privacy.steps import Step

_SCORING_OPTIONS = {"classification": ("accuracy", "auc", "log_loss"), "regression": ("r2", "rmse", "mae")}
_LOWER_IS_BETTER = ("log_loss", "rmse", "mae")
_MAX_SETTINGS = 1000
_TRIALS_PER_SETTING = 2.0
_TRAINING_FRACTION = Fraction(3, 4)  # of a trial's privacy loss, if training and evaluation do not compose in parallel


class TrialScore(NamedTuple):
    """Score of a trial (higher is better) and its setting. Ordered by score, then by setting."""

    score: float
    setting: int


@dataclass(frozen=True)
class _Trial:
    """Public design of a trial with one setting."""

    design: Design
    method: Method[Any]
    evaluation_loss: Loss
    class_weight: Any

    def take(self, charged: TrialBudget) -> None:
        """Deduct the losses of all releases of the trial from ``charged``. Raise PlanError if they exceed it."""
        charged.take(self.design.plan.loss, self.design.plan.neighbours)
        charged.take(self.evaluation_loss, charged.neighbours, aside=True)


def _estimator_has(name: str) -> Callable[[Any], bool]:
    return lambda search: hasattr(search.estimator, name)


class PrivateSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Hyperparameter search by private trials with random stopping, and a fit of the best setting on all rows.

    A trial draws a setting, holds out a fraction of the units by a secret key, trains on the others and evaluates on
    the held-out units; each of these steps is private. Only the best of a random number of trials is released. The
    search has twice the privacy loss of one trial, however many trials are run. The rest of epsilon goes to the fit.

    Parameters
    ----------
    estimator : estimator of this library
        The estimator to fit. Its schema, unit, adjacency and other parameters hold for every trial; its epsilon and
        ledger are not used.
    settings : dict of lists, or list of dicts
        A grid, of which all combinations are tried, or a list of settings. The schema, parameters of the guarantee
        (epsilon, delta, privacy_unit, adjacency, max_weight, ledger) and of the run (invalid, n_jobs) are not allowed.
    epsilon : float
        Pure privacy loss of search and fit together.
    search_budget : float
        Fraction of epsilon for the search.
    scoring : str, optional
        "accuracy" (default), "auc" or "log_loss"; for regression "r2" (default), "rmse" or "mae".
    holdout_fraction : float
        Fraction of the units that each trial is evaluated on.
    mean_trials : float, optional
        Expected number of trials. Default: two per setting. More trials cost time, not privacy.
    ledger : Ledger or path, optional
        Ledger to charge: one entry for the search, one for the fit.

    Attributes
    ----------
    best_params_, best_score_ : dict, float
        Setting and score of the best trial. The score is optimistic, because it is the best of many.
    best_estimator_ : estimator
        Estimator fitted on all rows. Its ``privacy_`` covers the fit alone.
    privacy_ : PrivacyCertificate
        The certificate of the search.
    total_epsilon_ : float
        Epsilon of search and fit together.

    Notes
    -----
    Guarantee

    epsilon-differential privacy for the estimator's unit and adjacency: proofs/private-search.md, attacked by
    packages/veilwood/tests/test_search.py and packages/veilwood/tests/privacy/test_selection.py. It assumes
    that no outsider observes the running time of the search, which depends on the number of trials.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, voting="threshold", random_state=0)
    >>> search = vw.PrivateSearch(forest, {"max_depth": [2, 4], "n_estimators": [2, 8]}, epsilon=4.0, mean_trials=3)
    >>> search.fit(car.X, car.y).total_epsilon_
    4.0
    >>> sorted(search.best_params_), search.predict(car.X[:3]).shape
    (['max_depth', 'n_estimators'], (3,))
    """

    def __init__(
        self,
        estimator: Any,
        settings: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
        *,
        epsilon: float = 1.0,
        search_budget: float = 0.5,
        scoring: str | None = None,
        holdout_fraction: float = 0.3,
        mean_trials: float | None = None,
        ledger: Ledger | str | PathLike[str] | None = None,
    ) -> None:
        self.estimator = estimator
        self.settings = settings
        self.epsilon = epsilon
        self.search_budget = search_budget
        self.scoring = scoring
        self.holdout_fraction = holdout_fraction
        self.mean_trials = mean_trials
        self.ledger = ledger

    # -- public ----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the plan of the search: its release and its privacy loss. Reads no data and spends no budget."""
        return self._design_search()[0]

    def fit(self, X: Any, y: Any = None) -> Self:
        """Search on a table and fit the best setting on all of its rows.

        Parameters
        ----------
        X, y
            The rows, as in ``fit`` of the estimator. Iterators are rejected, because they can be read only once.

        Returns
        -------
        self
        """
        plan, trials, settings, after = self._design_search()
        forest = self.estimator
        not_private = forest._resolve_schema()[1]
        door = Door(plan, open_ledger(self.ledger), not_private=not_private, table=handle_of(X))
        release = Release(door, extra_loss=after)  # both must be affordable: a search without a fit would be wasted
        release.open_rows(lambda: self._open_rows(X, y, trials[0].design).check_passes(True, "PrivateSearch"))
        (step,) = plan.steps
        with warnings.catch_warnings(), progress.no_progress():
            warnings.simplefilter("ignore")  # the number of warnings would reveal the number of trials
            best = release.measure(
                lambda door: door.release_best_trial(
                    step, lambda charged: self._run_trial(trials, X, y, charged), lambda one, other: one > other
                )
            )
        chosen = settings[-best.setting]
        self.privacy_: PrivacyCertificate = release.certificate()
        self.best_params_, self.best_score_ = dict(chosen), self._public_score(best.score)
        self.best_estimator_ = self._estimator_with(chosen, after, self.ledger)
        self.best_estimator_.fit(X, y)
        self.total_epsilon_ = float(_combined_loss(plan, self.best_estimator_.plan_).epsilon or 0)
        if self.privacy_.is_private:
            warn_of_weak_guarantee(self.total_epsilon_)
        return self

    @available_if(_estimator_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predict with the fitted estimator. Spends no budget."""
        return self._fitted_estimator().predict(X)

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the fitted estimator. Spends no budget."""
        return self._fitted_estimator().predict_proba(X)

    @available_if(_estimator_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any) -> float:
        """Return the exact score of the fitted estimator. Do not use it on private rows: the score has no noise."""
        return float(self._fitted_estimator().score(X, y))

    @property
    def classes_(self) -> Any:
        """The classes of the schema."""
        return self._fitted_estimator().classes_

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fitted_estimator(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _design_search(self) -> tuple[Plan, list[_Trial], list[dict[str, Any]], Loss]:
        """Return the plan, the trials, the settings, and the privacy loss left for the fit: public facts only."""
        forest = self.estimator
        is_private = isinstance(forest, BaseForest) and isinstance(forest, SharedParameters)
        if not is_private or not hasattr(forest, "predict"):
            raise UseError(
                f"{type(forest).__name__} cannot be searched. Hint: pass a private estimator of this library."
            )
        if forest.delta:
            raise ParameterError("delta", forest.delta, "must be 0: a search has a pure privacy loss", "pass delta=0")
        whole, share = requested_loss(self.epsilon, 0), exact_fraction(self.search_budget, "search_budget")
        if whole.epsilon is None:
            raise ParameterError(
                "epsilon",
                self.epsilon,
                "must be finite in a private search",
                "use GridSearchCV to search without privacy",
            )
        if not Fraction(1, 100) <= share <= Fraction(99, 100):
            raise ParameterError(
                "search_budget", self.search_budget, "must lie between 0.01 and 0.99", "pass a fraction of epsilon"
            )
        HoldoutSplit.draw(self.holdout_fraction)
        self._resolve_scoring()
        settings = self._list_settings()
        schema = forest._resolve_schema()[0]
        neighbours = forest._requested_privacy(schema)[1]
        of_trial, after = whole.epsilon * share / 2, Loss.pure(whole.epsilon * (1 - share))
        apart = neighbours.in_one_part
        train = of_trial if apart else of_trial * _TRAINING_FRACTION
        judge = of_trial if apart else of_trial - train
        trials = [self._design_trial(setting, schema, Loss.pure(train), Loss.pure(judge)) for setting in settings]
        for setting, trial in zip(settings, trials, strict=True):
            # Checked here, before anything is read or spent, and again by each door of a trial and by the fit.
            trial.take(TrialBudget(Loss.pure(of_trial), neighbours))
            if self._estimator_with(setting, after, None)._requested_privacy(schema) != (after, neighbours):
                raise PlanError(
                    f"the setting {setting} would change what is protected: the search protects {neighbours}. "
                    "Hint: remove the setting."
                )
        wanted = _TRIALS_PER_SETTING * len(settings) if self.mean_trials is None else self.mean_trials
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 1 <= wanted <= 10**5:
            raise ParameterError("mean_trials", wanted, "must lie between 1 and 100,000", "omit it for the default")
        stopping = RandomStopping.with_mean(of_trial, max(float(wanted), 1.45))
        step = Step("best setting", Loss.pure(stopping.epsilon), stopping, 1, (len(settings),))
        plan = Plan(
            estimator="PrivateSearch",
            parameters={
                "of": type(forest).__name__,
                "settings": to_plain_value("settings", settings),
                "scoring": self._resolve_scoring(),
                "holdout_fraction": to_plain_value("holdout_fraction", self.holdout_fraction),
                "invalid": forest.invalid,
            },
            loss=Loss.pure(stopping.epsilon),
            neighbours=neighbours,
            steps=(step,),
            released=f"which of {len(settings)} settings did best in trials that were stopped at random, and its score",
            schema_name=schema.name,
            schema_hash=schema.fingerprint(),
            layout=Layout(),
            expected_leaf_mse=0.0,
        )
        return plan, trials, settings, after

    def _list_settings(self) -> list[dict[str, Any]]:
        given = self.settings
        try:
            found = [dict(each) for each in (ParameterGrid(dict(given)) if isinstance(given, Mapping) else given)]
        except (TypeError, ValueError):
            raise ParameterError(
                "settings", given, "must be a grid or a list of dicts", "pass a grid such as {'max_depth': [2, 4, 6]}"
            ) from None
        if not 2 <= len(found) <= _MAX_SETTINGS:
            raise ParameterError(
                "settings", given, f"must be 2 to {_MAX_SETTINGS}, not {len(found)}", "change the grid"
            )
        known = searchable_parameters(type(self.estimator))
        for name in {name for each in found for name in each}:
            if name not in known:
                raise ParameterError(
                    "settings", name, "cannot be searched over", f"choose from {', '.join(sorted(known))}"
                )
        return found

    def _resolve_scoring(self) -> str:
        known = _SCORING_OPTIONS[self.estimator._task]
        scoring = known[0] if self.scoring is None else self.scoring
        if scoring not in known:
            raise ParameterError("scoring", scoring, "must be a known score", f"choose one of {', '.join(known)}")
        return scoring

    def _estimator_with(self, setting: Mapping[str, Any], loss: Loss, ledger: Any) -> Any:
        """Return an unfitted estimator for a setting, with the schema, privacy loss and ledger of the search."""
        ours = {"schema": self.estimator.schema, "epsilon": loss.epsilon, "delta": 0.0, "ledger": ledger}
        return deepcopy(self.estimator).set_params(**{**setting, **ours})

    def _design_trial(self, setting: dict[str, Any], schema: Any, loss: Loss, evaluation_loss: Loss) -> _Trial:
        forest = self._estimator_with(setting, loss, None)
        method, weights = forest._make_method(), getattr(forest, "class_weight", None)
        if weights is not None:  # validated before anything is spent
            explicit_weights(weights, class_labels(schema))
        return _Trial(forest._design_for(schema, None, method), method, evaluation_loss, weights)

    def _run_trial(self, trials: list[_Trial], X: Any, y: Any, charged: TrialBudget) -> TrialScore:
        """Draw a setting, train on some of the units, and evaluate on the others. Only the best score is released."""
        number, forest = draw_below(len(trials)), self.estimator
        trial, neighbours = trials[number], charged.neighbours
        design, method = trial.design, trial.method
        door = TrialDoor(design.plan, charged)  # raises before rows are read, if the trial exceeds its budget
        opener = partial(self._open_rows, X, y, design)
        parts = HoldoutSplit.draw(self.holdout_fraction).open_parts(opener, neighbours.unit)
        with door:
            released = method.measure_rows(design, parts[0], door, forest.n_jobs)
        model = method.build_model(design, door.plan, released, forest.n_jobs)
        scoring = Scoring(weighted_model(trial.class_weight, design.encoding.labels, model))
        step = scoring.plan_step(trial.evaluation_loss, neighbours)
        judged = replace(design.plan, estimator="evaluate", steps=(step,), loss=step.loss, opened_as=None)
        with TrialDoor(judged, charged, aside=True) as door:
            counts = door.release_counts(step, parts[1].aggregate(scoring.make_count(), n_jobs=forest.n_jobs))
        schema = design.encoding.schema
        bounds = None if schema.classes else schema.target.bounds
        found = estimate_quality(scoring.split_tables(counts), step.variance, tuple(schema.classes), bounds)
        value = found.scores[self._resolve_scoring()].value
        score = -math.inf if value is None else -value if self._resolve_scoring() in _LOWER_IS_BETTER else value
        return TrialScore(score, -number)  # ties go to the earlier setting

    def _open_rows(self, X: Any, y: Any, design: Design, id_filter: IdFilter | None = None) -> Source:
        unit, invalid = design.plan.neighbours.unit, self.estimator.invalid
        return open_rows(
            X, y, design.encoding, unit=unit, invalid=invalid, estimator="PrivateSearch", id_filter=id_filter
        )

    def _public_score(self, score: float) -> float | None:
        if score == -math.inf:
            return None
        return -score if self._resolve_scoring() in _LOWER_IS_BETTER else score


def _combined_loss(search: Plan, fit: Plan) -> Loss:
    """Return the privacy loss of search and fit together. Raise PlanError if they protect different units."""
    if fit.neighbours != search.neighbours:
        raise PlanError(
            f"the fit protects {fit.neighbours}, but the search protects {search.neighbours}. Hint: use one unit."
        )
    return search.loss + fit.loss
