# SPDX-License-Identifier: Apache-2.0
"""Common base of the scikit-learn estimators: the order of a fit, prediction and scores.

An estimator class has parameters and documentation. The method (``method``) decides what is grown, measured and
learned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self, TypeAlias, get_args

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from veilwood import errors
from veilwood.arrays import AMBIENT_JOBS, AnyArray, Codes, Floats
from veilwood.charts import html_card
from veilwood.data.batches import Source
from veilwood.data.contributions import Weights, check_max_weight, scale_unit
from veilwood.data.encoding import Encoding, class_labels
from veilwood.data.open_rows import JointRows, open_rows
from veilwood.data.problems import Invalid
from veilwood.data.schema import Schema, TaskKind
from veilwood.estimators.class_weights import explicit_weights, weighted_model
from veilwood.estimators.method import Design, FitRequest, Method, Model, Parameters, method_of
from veilwood.estimators.new_rows import UNKNOWN_HINT, UnknownRule, predict_rows
from veilwood.estimators.parameters import MAX_THREADS, parameters_in_plan, to_plain_value
from veilwood.evaluation.evaluate import Evaluation, Holdout
from veilwood.privacy.accountant import (
    handle_of,
    warn_of_repeated_fits,
    warn_of_smaller_unit,
    warn_of_weak_guarantee,
    warn_once,
)
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import INFERRED_SCHEMA, Door, Measurement
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, guarantee_strength, requested_loss
from veilwood.privacy.neighbours import Neighbours, Rows, RowsOf, Unit, resolve_unit
from veilwood.privacy.plan import Plan
from veilwood.privacy.release import Release
from veilwood.safe_io import is_int_in
from veilwood.siblings import predict_on_clusters
from veilwood.trees.random import check_random_state, public_seed

PlanOrPath: TypeAlias = Plan | str | PathLike[str]


def _is_infer(schema: object) -> bool:
    return isinstance(schema, str) and schema == "infer"


def _equal_or_false(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # a value is an array: treat it as changed, because planning again is always correct
        return False


class BaseForest(BaseEstimator):  # type: ignore[misc]
    """Base class of all estimators. A fit has three phases: public design, release through the door, post-processing.

    Besides the methods of scikit-learn, other packages of this library call ``_make_method``, ``_requested_privacy``,
    ``_resolve_schema``, ``_fit_request``, ``_design_for``, ``_run_release``, ``_encode_rows`` and
    ``_prediction_model``.
    """

    _task: ClassVar[TaskKind]
    _method_class: ClassVar[type[Method[Any]]]
    _predict_encoded: Callable[[Any], Any]

    # Parameters.
    schema: Any
    epsilon: Any
    delta: Any
    privacy_unit: Any
    adjacency: Any
    random_state: Any
    ledger: Any
    n_jobs: Any
    invalid: Any
    max_weight: Any = None  # a parameter of private estimators
    class_weight: Any = None  # a parameter of classifiers

    _is_clone: bool = False  # set by scikit-learn's clone
    _prepared: tuple[Any, Design] | None = None  # set by plan(), used by the next fit
    _unfinished: Any = None  # set by partial_fit(), used by release()

    # Set by fit, together with the public attributes of the model.
    schema_: Schema
    plan_: Plan
    privacy_: PrivacyCertificate
    measurements_: tuple[Measurement, ...]  # released by the door; the model is computed from them
    model_: Any
    evaluation_: Evaluation
    statements_: tuple[str, ...] = ()  # SHA-256 of each SQL statement, if the rows were counted in a database
    n_features_in_: int
    feature_names_in_: AnyArray
    classes_: AnyArray

    # -- public ----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the plan of ``fit``: every release and its privacy loss. Reads no data and spends no budget."""
        return self._design_for(self._resolve_schema()[0]).plan

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        plan: PlanOrPath | None = None,
        holdout_fraction: float | None = None,
        evaluate_epsilon: float | None = None,
        sample_weight: Any = None,
        **unsupported: Any,
    ) -> Self:
        """Fit on a table: release noisy counts through the door and charge the ledger once.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, pyarrow dataset, iterator of tables, or frame of a cluster
            The rows. A file, or a table without ``y``, must contain the target column of the schema. Frames of Dask,
            Spark and Ray are counted on their cluster. An iterator can be read only once, so forests that grow level
            by level reject it. For secure training, pass the parties of ``veilwood_secure`` instead.
        y : array-like, optional
            The target.
        plan : Plan or path, optional
            A saved, perhaps signed, plan. ``fit`` executes exactly this plan, or raises PlanError and lists the
            differences. Default: the plan that ``plan()`` returned last, if no parameter has changed since.
        holdout_fraction : float, optional
            Fraction of the units to hold out, such as 0.2, chosen by a secret key. The model is trained on the other
            units and evaluated on the held-out units; ``evaluation_`` is the result. If the unit is one row or all rows
            of an id and adjacency is "add-remove", the evaluation spends no additional budget, because each unit is
            either trained on or held out (proofs/evaluation.md).
        evaluate_epsilon : float, optional
            Required for other units and adjacencies: the privacy loss of the evaluation. It adds to the loss of the fit
            and is recorded in a separate ledger entry.
        sample_weight : array-like, optional
            Weight of each row, from 0 to the parameter ``max_weight``; larger weights are clipped to it. The noise
            grows with ``max_weight``, because one row can have that much weight.

        Returns
        -------
        self
        """
        self._reject_arguments(unsupported)
        schema, not_private = self._resolve_schema(X, y)
        method = self._make_method()
        design = self._design_for(schema, plan, method)
        holdout = Holdout.requested(design.plan, holdout_fraction, evaluate_epsilon)
        release = Release(self._make_door(X, design.plan, not_private), extra_loss=holdout.extra_loss)
        sources = release.open_rows(lambda: self._open_sources(X, y, design.encoding, holdout, sample_weight))
        sources[0].check_passes(method.multi_pass or len(sources) > 1, type(self).__name__)
        statements = sources[0].executed_statements
        warn_of_repeated_fits(handle_of(X), with_ledger=self.ledger is not None, is_clone=self._is_clone)
        # Popped from the list, so that the encoded rows are freed before the model is built.
        self._run_release(
            release, design, method, lambda door: method.measure_rows(design, sources.pop(0), door, self.n_jobs)
        )
        if sources:
            self.evaluation_ = holdout.evaluate(self, sources[0], release.door)
        if statements is not None:
            self.statements_ = tuple(statements)
        return self

    @property
    def feature_importances_(self) -> Floats:
        """Importances of the columns, which add up to 1. Computed from released values: spends no budget."""
        check_is_fitted(self, "model_")
        strengths: Floats = self.model_.column_strengths()
        total = strengths.sum()
        return strengths / total if total > 0 else strengths

    # -- for other packages of this library ----------------------------------------------------------------------------

    def _make_method(self) -> Method[Any]:
        """Return the method for the current, validated parameters. With size "auto", the method chooses the size."""
        bases = (base for base in type(self).__mro__ if issubclass(base, Parameters))
        own = next(base for base in bases if not issubclass(base, BaseForest))  # the parameters of the family
        return method_of(self._method_class.from_parameters, own, self)

    def _requested_privacy(self, schema: Schema | None = None) -> tuple[Loss, Neighbours]:
        """Validate the privacy parameters and return the loss and the neighbours. Raise before any budget is spent.

        Without ``schema``, the unit is that of the schema of the estimator.
        """
        if self.n_jobs is not None and (not is_int_in(self.n_jobs, -MAX_THREADS, MAX_THREADS) or self.n_jobs == 0):
            raise errors.ParameterError(
                "n_jobs", self.n_jobs, "must be a number of threads", f"choose 1 to {MAX_THREADS}, or -1 for all"
            )
        if not isinstance(self.invalid, str) or self.invalid not in get_args(Invalid):
            raise errors.ParameterError("invalid", self.invalid, "must be 'refuse' or 'drop'")
        neighbours = Neighbours.from_parameters(self.adjacency, self._protected_unit(schema))
        if self.max_weight is not None:
            neighbours = replace(neighbours, unit=scale_unit(neighbours.unit, check_max_weight(self.max_weight)))
        return requested_loss(self.epsilon, self.delta), neighbours

    def _protected_unit(self, schema: Schema | None = None) -> Unit:
        """Return the unit to protect: ``privacy_unit`` if set, otherwise the unit of the schema, otherwise one row."""
        if self.privacy_unit is not None:
            return resolve_unit(self.privacy_unit)
        if schema is None and self.schema is not None and not _is_infer(self.schema):
            schema = Schema.resolve(self.schema)
        declared = None if schema is None else schema.privacy_unit
        return Rows() if declared is None else declared

    def _resolve_schema(self, X: Any = None, y: Any = None) -> tuple[Schema, str | None]:
        """Return the schema, and the reason why it is not private if it was inferred from the data."""
        if _is_infer(self.schema):
            if X is None or isinstance(X, JointRows):
                raise errors.UseError(
                    "schema='infer' needs rows, and a plan is made without rows. Hint: declare a schema."
                )
            schema = Schema.infer(X, y, self._task)
        else:
            schema = self.schema if isinstance(self.schema, Schema) else Schema.resolve(self.schema)
            schema = schema if y is None else schema.for_labels(y)
            if self.privacy_unit is not None:
                warn_of_smaller_unit(resolve_unit(self.privacy_unit), schema.privacy_unit, schema.name)
        if self.class_weight is not None:  # validated now, because it is used only after the release
            explicit_weights(self.class_weight, class_labels(schema))
        return self._check_task(schema), INFERRED_SCHEMA if schema.inferred else None

    def _fit_request(self, schema: Schema, seed: int, decisions: Mapping[str, Any] | None = None) -> FitRequest:
        """Return the validated public inputs from which the method designs a fit."""
        promise = self._requested_privacy(schema)  # first, because its errors are the clearest
        listed = parameters_in_plan(type(self))
        parameters = {
            name: to_plain_value(name, value) for name, value in self.get_params(deep=False).items() if name in listed
        }
        return FitRequest(type(self).__name__, parameters, schema, *promise, seed, decisions or {})

    def _design_for(self, schema: Schema, plan: PlanOrPath | None = None, method: Method[Any] | None = None) -> Design:
        """Return the public design of the given plan, of the latest plan if nothing changed, or a new one."""
        method = method or self._make_method()
        if plan is not None:
            check_random_state(self.random_state)
            plan = plan if isinstance(plan, Plan) else Plan.load(plan)
            design = method.make_design(self._fit_request(schema, plan.public_seed, plan.choices))
            differs = plan.differences(design.plan)
            if is_int_in(self.random_state, 0) and int(self.random_state) != plan.public_seed:
                differs.append(f"random_state: {plan.public_seed} planned, {self.random_state} now")
            if differs:
                raise errors.PlanError(
                    f"the fit would not execute the plan {plan.fingerprint()[:12]}: {'; '.join(differs)}. "
                    "Hint: use the planned parameters and schema, or make a new plan."
                )
            return replace(design, plan=plan)  # the signed plan itself, to the last digit
        asked = self._fit_request(schema, 0)
        key = (asked, self.random_state)
        if self._prepared is None or not _equal_or_false(self._prepared[0], key):
            self._prepared = (key, method.make_design(replace(asked, seed=public_seed(self.random_state))))
        return self._prepared[1]

    def _run_release(
        self, release: Release, design: Design, method: Method[Any], measure: Callable[[Door], Any]
    ) -> None:
        """Measure through a door, and build the model from the released values."""
        earlier = {name: getattr(self, name) for name in self._fitted_attributes()}
        released = release.measure(measure)
        self._prepared = self._unfinished = None  # used up: the next fit needs a new plan and new counts
        # Removed only now: after a rejected or interrupted refit, the earlier model, whose loss is spent, must remain.
        self._remove_attributes(list(earlier))
        try:
            self._set_certificate(release)
            self.measurements_ = tuple(release.door.measurements)
            self._set_model(design.encoding.schema, method.build_model(design, self.plan_, released, self.n_jobs))
        except BaseException as error:
            self._remove_attributes(self._fitted_attributes())
            self.__dict__.update(earlier)
            error.add_note(f"{release.door.plan.loss} was spent, but no model was built.")
            raise
        warning = method.utility_warning(self.plan_, self.model_)
        if warning is not None:
            warnings.warn(warning, errors.UtilityWarning, stacklevel=3)

    def _set_model(self, schema: Schema, model: Model) -> None:
        """Set a model, fitted or loaded, and its public attributes."""
        self._set_schema_attributes(schema, model.encoding)
        self.model_ = model
        for name in model.public_attributes:
            setattr(self, f"{name}_", getattr(model, name))

    def _prediction_model(self) -> Model:
        """Return the model that makes all predictions."""
        model: Model = self.model_
        return model

    def _encode_rows(self, X: Any) -> Codes:
        """Encode the rows to predict. Requires a fitted estimator."""
        if "model_" not in vars(self):
            check_is_fitted(self, "model_")
        AMBIENT_JOBS.set(self.n_jobs)
        return self._encode_with(self.model_.encoding, X)

    def _predict_rows(self, X: Any, unknown: UnknownRule | None) -> tuple[Floats, AnyArray]:
        """Return the outputs and labels of new rows. For regression, both are the predicted numbers."""
        if unknown is None and isinstance(X, pd.DataFrame | np.ndarray):
            return self._predict_in_memory(X)
        return predict_rows(self, X, unknown)

    def _predict_in_memory(self, X: Any) -> tuple[Floats, AnyArray]:
        """Return the outputs and labels of a table in memory that satisfies the schema."""
        try:
            predicted = self._predict_encoded(self._encode_rows(X))
        except errors.OutOfSchemaError as error:
            if error.problems:
                error.add_note(UNKNOWN_HINT)
            raise
        return predicted if isinstance(predicted, tuple) else (predicted, predicted)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _make_door(self, X: Any, plan: Plan, not_private: str | None) -> Door:
        """Return the release door of a fit. Rows of several owners bring their own door."""
        ledger = open_ledger(self.ledger)
        if isinstance(X, JointRows):
            return X.make_door(self, ledger)
        return Door(plan, ledger, not_private=not_private, table=handle_of(X))

    def _open_sources(self, X: Any, y: Any, encoding: Encoding, holdout: Holdout, sample_weight: Any) -> list[Source]:
        """Open the training rows and, if units are held out, the evaluation rows."""
        AMBIENT_JOBS.set(self.n_jobs)
        weights = None if sample_weight is None else Weights.validated(sample_weight, self.max_weight)
        unit = self._protected_unit(encoding.schema)  # bounds rows per unit, before weights make copies of them
        opener = partial(open_rows, X, y, encoding, unit=unit, invalid=self.invalid, weights=weights)
        return holdout.open_parts(opener, unit)

    def _encode_with(self, encoding: Encoding, X: Any) -> Codes:
        unit = self._protected_unit(self.schema_)
        extra = (unit.id,) if isinstance(unit, RowsOf) else ()
        return encoding.encode(X, allowed_extra=extra, estimator=type(self).__name__)

    def _fitted_attributes(self) -> list[str]:
        """Return the names of the attributes that a fit has set."""
        return [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]

    def _remove_attributes(self, names: list[str]) -> None:
        """Delete attributes of an earlier fit, so that its certificate is never paired with a different model."""
        for name in names:
            delattr(self, name)

    def _set_certificate(self, release: Release) -> None:
        """Set the certificate of a finished release, and warn if it gives no guarantee or a weak one."""
        self.privacy_, self.plan_ = release.certificate(), release.door.plan
        if not self.privacy_.is_private:
            warnings.warn(f"the result is NOT PRIVATE: {self.privacy_.reason}", errors.PrivacyWarning, stacklevel=4)
        else:
            warn_of_weak_guarantee(self.privacy_.epsilon)

    def _reject_arguments(self, unsupported: dict[str, Any]) -> None:
        if unsupported:
            raise errors.UseError(f"{', '.join(unsupported)} cannot be passed here. Hint: remove the argument.")

    def _check_task(self, schema: Schema) -> Schema:
        if schema.task != self._task:
            raise errors.SchemaError(
                f"schema {schema.name!r} is for {schema.task}, but {type(self).__name__} is for {self._task}. "
                "Hint: use the estimator for the other task, or another schema."
            )
        return schema

    def _set_schema_attributes(self, schema: Schema, encoding: Encoding) -> None:
        """Set the attributes that depend on the schema alone."""
        self.schema_ = schema
        self.n_features_in_ = len(schema.features)
        self.feature_names_in_ = np.array(schema.feature_names, dtype=object)
        if self._task == "classification":
            self.classes_ = encoding.labels.copy()

    def _adjust_tags(self, tags: Any, task_tags: Any) -> Any:
        """Adjust the estimator tags that the checks of scikit-learn read."""
        task_tags.poor_score = True
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def __sklearn_clone__(self) -> Self:
        """Mark the clone: searches, calibration and ensembles of scikit-learn fit clones, and their losses add up."""
        clone: Self = super().__sklearn_clone__()
        clone._is_clone = True
        return clone

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_prepared", None)
        return state

    def _html_repr(self) -> str:
        """Return the HTML for notebooks: the estimator below a badge that shows its guarantee."""
        certificate = getattr(self, "privacy_", None)
        epsilon = self.get_params(deep=False).get("epsilon")
        if certificate is not None:
            badge = (certificate.strength.label, certificate.strength.colour)
            line = str(certificate)
        else:
            is_bounded = isinstance(epsilon, int | float) and epsilon < float("inf")
            strength = guarantee_strength(epsilon if is_bounded else None)
            badge, line = (strength.label, strength.colour), f"epsilon={epsilon}, not fitted"
        return html_card(type(self).__name__, line, badge=badge) + str(super()._html_repr())

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        if (
            "epsilon" in self.get_params(deep=False) and "epsilon=" not in text
        ):  # printed even if it is the default, because it belongs to the guarantee
            name = f"{type(self).__name__}("
            rest = text.removeprefix(name)
            text = f"{name}epsilon={self.epsilon!r}{'' if rest == ')' else ', '}{rest}"
        fitted: PrivacyCertificate | None = self.__dict__.get("privacy_")
        return text if fitted is None or fitted.is_private else f"{text}  # NOT PRIVATE: {fitted.reason}"


def _warn_exact_score() -> None:
    warn_once(
        "score",
        "score() is exact: it reveals something about its rows that no certificate covers. This is fine for public "
        "rows. Hint: on private rows use vw.evaluate(model, X, y, epsilon=0.1, ledger=...).",
    )


class Classifier(ClassifierMixin, BaseForest):  # type: ignore[misc]
    """Base class of the classifiers."""

    _task: ClassVar[TaskKind] = "classification"

    @predict_on_clusters
    def predict_proba(self, X: Any, *, unknown: UnknownRule | None = None) -> Floats:
        """Return the probability of each class. Rows are treated as in ``predict``; skipped rows get NaN."""
        return self._predict_rows(X, unknown)[0]

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of each class's probability. Spends no budget."""
        logs: Floats = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> Floats:
        """Return the log-odds of the second of two classes, or of each class relative to the mean. Spends no budget.

        For two classes, a value above 0 means that the second class is more probable.
        """
        logs = self.predict_log_proba(X)
        if logs.shape[1] == 2:
            return np.asarray(logs[:, 1] - logs[:, 0])
        return np.asarray(logs - logs.mean(axis=1, keepdims=True))

    @predict_on_clusters
    def predict(self, X: Any, *, unknown: UnknownRule | None = None) -> AnyArray:
        """Return the predicted classes. Spends no budget: they are computed from released values.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, or frame of a cluster
            The rows. Files need no target.
        unknown : {"other", "missing", "skip", "refuse"}, optional
            Treatment of values that the schema does not allow. "other", the default for files: average the predictions
            over all categories; treat an unusable number as missing, or skip the row if the column has no missing
            values. "missing": treat the value as missing. "skip": predict None. These rules issue a warning with the
            number of affected rows. "refuse", the default for tables in memory: raise an error.
        """
        return self._predict_rows(X, unknown)[1]

    def _predict_encoded(self, codes: Codes) -> tuple[Floats, AnyArray]:
        """Return the probability of each class and the predicted class of encoded rows.

        All predictions use this method, so that ``class_weight`` applies to each of them.
        """
        shares, places = self._prediction_model().predict_both(codes, self.n_jobs)
        return shares, self.classes_[places]

    def _prediction_model(self) -> Model:
        """Return the model with its classes reweighted by ``class_weight``."""
        model: Model = self.model_
        return model if self.class_weight is None else weighted_model(self.class_weight, self.classes_, model)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy.

        Classes in ``y`` may be numbers or text, as in ``fit``. The result is exact: for private rows, use
        ``vw.evaluate``.
        """
        _warn_exact_score()
        predicted, encode = self.predict(X), self.model_.encoding.encode_target
        return float(accuracy_score(encode(y), encode(predicted), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._adjust_tags(tags, tags.classifier_tags)


class Regressor(RegressorMixin, BaseForest):  # type: ignore[misc]
    """Base class of the regressors: predictions lie between the bounds of the schema's target."""

    _task: ClassVar[TaskKind] = "regression"

    @predict_on_clusters
    def predict(self, X: Any, *, unknown: UnknownRule | None = None) -> Floats:
        """Return the predicted targets, within the schema's bounds. Spends no budget.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, or frame of a cluster
            The rows. Files need no target.
        unknown : {"other", "missing", "skip", "refuse"}, optional
            Treatment of values that the schema does not allow. "other", the default for files: average the predictions
            over all categories; treat an unusable number as missing, or skip the row if the column has no missing
            values. "missing": treat the value as missing. "skip": predict NaN. These rules issue a warning with the
            number of affected rows. "refuse", the default for tables in memory: raise an error.
        """
        return self._predict_rows(X, unknown)[1]

    def _predict_encoded(self, codes: Codes) -> Floats:
        """Return the predicted targets of encoded rows. All predictions use this method."""
        numbers: Floats = self._prediction_model().predict_outputs(codes, self.n_jobs)
        return numbers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the R2 score. The result is exact: for private rows, use ``vw.evaluate``."""
        _warn_exact_score()
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return self._adjust_tags(tags, tags.regressor_tags)
