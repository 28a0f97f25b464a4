# SPDX-License-Identifier: Apache-2.0
"""Forests that need the rows once can be trained on batches as they come, and released once at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from veilwood.data.batches import Batch, Count
from veilwood.data.canonical import to_canonical_texts
from veilwood.data.open_rows import open_rows
from veilwood.errors import ParameterError, UseError, shorten_text
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Design, OnePassMethod
from veilwood.privacy.accountant import DataHandle, handle_of, warn_of_repeated_fits
from veilwood.privacy.door import SEEDED_NOISE
from veilwood.privacy.entropy import is_seeded
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.neighbours import RowsOf


@dataclass(repr=False)
class _PartialCounts:
    """Exact counts of the rows so far: private, in memory only."""

    design: Design
    params: dict[str, Any]
    count: Count
    sums: NDArray[np.int64]
    n_partitions: int
    not_private: list[str]
    table: DataHandle  # of the first batch

    def __reduce__(self) -> NoReturn:
        raise _copy_error()


class OnePassForest(BaseForest):
    """A forest whose method needs the rows once (``OnePassMethod``)."""

    _unfinished: _PartialCounts | None

    if TYPE_CHECKING:

        def _make_method(self) -> OnePassMethod[Any]:
            """Return the method that the parameters ask for, checked."""

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **unsupported: Any) -> Self:
        """Count one batch of rows, exactly and in memory; ``release`` ends the fit and makes the model.

        Nothing is spent and nothing can be predicted before ``release``. If the work is interrupted, what was counted
        is lost and nothing was spent.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, pyarrow dataset, iterator of tables, or frame of a cluster
            The rows of this batch. Every row must come once only.
        y : array-like, optional
            Their targets, where ``X`` does not hold them.
        classes : array-like, optional
            As in scikit-learn; not needed, since the schema has them, and refused where they differ from those.

        Returns
        -------
        self

        Examples
        --------
        >>> import veilwood as vw
        >>> car = vw.datasets.car()
        >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, n_estimators=10, max_depth=4, random_state=0)
        >>> for start in range(0, len(car.X), 500):
        ...     _ = forest.partial_fit(car.X[start:start + 500], car.y[start:start + 500])
        >>> forest.release().privacy_.epsilon
        2.0
        """
        self._reject_arguments(unsupported)
        current = self._unfinished
        if current is None:
            current = self._start_partial_fit(X, y)
        else:
            self._check_params(current)
        schema = current.design.encoding.schema
        if classes is not None and _class_texts(classes) != set(schema.classes):
            raise ParameterError(
                "classes", classes, f"are not those of the schema: {shorten_text(', '.join(schema.classes))}"
            )
        with self._record_rejections(current.design.plan, "; ".join(current.not_private) or None, handle_of(X)):
            source = open_rows(X, y, current.design.encoding, invalid=self.invalid, estimator=type(self).__name__)
            sums = source.aggregate(partial(_count_shifted, current.count, current.n_partitions), n_jobs=self.n_jobs)
        # Only now, after the whole batch was accepted: a refused one leaves no trace.
        if self._unfinished is None:
            self._unfinished = current
            if not hasattr(self, "privacy_"):
                self.n_features_in_ = len(schema.features)
        if is_seeded() and SEEDED_NOISE not in current.not_private:
            current.not_private.append(SEEDED_NOISE)
        current.n_partitions += source.n_partitions
        current.sums = current.sums + sums  # last: an interrupt may leave places unused, never two rows in one place
        return self

    def release(self) -> Self:
        """End a fit made of ``partial_fit``: charge the ledger once, add noise once, and forget the exact counts.

        Returns
        -------
        self
            Fitted, as by ``fit`` on all rows together.
        """
        current = self._unfinished
        if current is None:
            raise UseError("there is nothing to release. Hint: call partial_fit with some rows first, or fit.")
        self._check_params(current)
        design, method = current.design, self._make_method()
        warn_of_repeated_fits(current.table, with_ledger=self.ledger is not None)
        self._fit_through_door(
            design,
            method,
            "; ".join(current.not_private) or None,
            lambda door: method.release_sums(design, current.sums, door),
            current.table,
        )
        return self

    def _start_partial_fit(self, X: Any, y: Any) -> _PartialCounts:
        """Design the forest and draw the key; refuse what cannot be paid for or cannot be done batch by batch."""
        _, neighbours = self._requested_privacy()
        if isinstance(neighbours.unit, RowsOf):
            raise UseError(
                f"rows of one {neighbours.unit.id!r} may come in several batches, so which to keep cannot be told. "
                "Hint: fit a table, a folder or a cluster's frame instead of partial_fit."
            )
        schema, not_private = self._resolve_schema(X, y)
        method = self._make_method()
        design = self._design_for(schema, method=method)
        loss = design.plan.loss
        ledger = open_ledger(self.ledger)
        ledger.check_affordable(loss)  # nothing is reserved before release
        count = method.make_count(design)
        reasons = [reason for reason in (not_private, SEEDED_NOISE if is_seeded() else None) if reason]
        return _PartialCounts(design, self.get_params(deep=False), count, count([]), 0, reasons, handle_of(X))

    def __getstate__(self) -> dict[str, Any]:
        if self._unfinished is not None:  # also of a shallow copy, which would go on adding to the same counts
            raise _copy_error()
        return super().__getstate__()

    def _check_params(self, current: _PartialCounts) -> None:
        """What is released must be what was counted."""
        now = self.get_params(deep=False)
        changed = [name for name, value in current.params.items() if now[name] is not value and now[name] != value]
        if changed:
            raise UseError(
                f"{', '.join(changed)} changed since the first partial_fit. Hint: set it back, or begin with a clone."
            )


def _copy_error() -> UseError:
    return UseError("an unfinished fit holds exact counts and cannot be copied or pickled. Hint: call release() first.")


def _class_texts(classes: Any) -> set[Any] | None:
    """Return the texts of some classes; None for what is not a list of classes."""
    try:
        return None if isinstance(classes, str) else set(to_canonical_texts(list(classes)))
    except TypeError:
        return None


def _count_shifted(count: Count, offset: int, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> NDArray[np.int64]:
    """Count batches as partitions that follow those before, so that no two rows share a place."""
    return count((batch._replace(partition=batch.partition + offset) for batch in batches), n_jobs=n_jobs)
