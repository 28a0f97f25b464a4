# SPDX-License-Identifier: Apache-2.0
"""Batch-wise training with a single release at the end, for forests that read the rows once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from veilwood.arrays import Ints
from veilwood.data.batches import Batch, Count, Source
from veilwood.data.canonical import to_canonical_texts
from veilwood.data.open_rows import open_rows
from veilwood.errors import ParameterError, UseError, shorten_text
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Design, OnePassMethod
from veilwood.privacy.accountant import DataHandle, handle_of, warn_of_repeated_fits
from veilwood.privacy.door import SEEDED_NOISE, Door
from veilwood.privacy.entropy import is_seeded
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.neighbours import RowsOf
from veilwood.privacy.release import Release


@dataclass(repr=False)
class _PartialCounts:
    """Exact counts of the rows so far. They are private and exist in memory only."""

    design: Design
    params: dict[str, Any]
    count: Count
    sums: Ints
    n_partitions: int
    not_private: list[str]
    table: DataHandle  # of the first batch

    def __reduce__(self) -> NoReturn:
        raise _copy_error()


class OnePassForest(BaseForest):
    """Forest whose method reads the rows once (``OnePassMethod``)."""

    _unfinished: _PartialCounts | None

    if TYPE_CHECKING:

        def _make_method(self) -> OnePassMethod[Any]:
            """Return the method for the current parameters, validated."""

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **unsupported: Any) -> Self:
        """Add a batch of rows to the exact counts in memory. ``release`` ends the fit and builds the model.

        Before ``release``, no budget is spent and no predictions are possible. If the process ends, the counts are lost
        and no budget has been spent.

        Parameters
        ----------
        X : dataframe, array, path, folder, glob, pyarrow dataset, iterator of tables, or frame of a cluster
            The rows of this batch. Pass every row only once.
        y : array-like, optional
            The targets of the rows, if ``X`` does not contain them.
        classes : array-like, optional
            As in scikit-learn. Not needed, because the schema declares the classes. Must equal them if passed.

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
                "classes",
                classes,
                f"must be those of the schema: {shorten_text(', '.join(schema.classes))}",
                "omit them",
            )
        source, sums = self._release_of(current, handle_of(X)).open_rows(lambda: self._count_batch(current, X, y))
        # Added only after the whole batch was accepted, so that a rejected batch changes no counts.
        if self._unfinished is None:
            self._unfinished = current
            if not hasattr(self, "privacy_"):
                self.n_features_in_ = len(schema.features)
        if is_seeded() and SEEDED_NOISE not in current.not_private:
            current.not_private.append(SEEDED_NOISE)
        current.n_partitions += source.n_partitions
        current.sums = (
            current.sums + sums
        )  # last: an interrupt may leave partition numbers unused, but never uses one twice
        return self

    def release(self) -> Self:
        """Finish the fit after ``partial_fit``: charge the ledger once, add noise once, and discard the exact counts.

        Returns
        -------
        self
            The estimator, fitted as by ``fit`` on all rows together.
        """
        current = self._unfinished
        if current is None:
            raise UseError(
                "the estimator has no counts to release. Hint: call partial_fit with some rows first, or fit."
            )
        self._check_params(current)
        design, method = current.design, self._make_method()
        warn_of_repeated_fits(current.table, with_ledger=self.ledger is not None, is_clone=self._is_clone)
        self._run_release(
            self._release_of(current, current.table),
            design,
            method,
            lambda door: method.release_sums(design, current.sums, door),
        )
        return self

    def _release_of(self, current: _PartialCounts, table: DataHandle) -> Release:
        """Return the release that ends the fit. Every batch checks its budget, but only ``release`` reserves it."""
        not_private = "; ".join(current.not_private) or None
        return Release(Door(current.design.plan, open_ledger(self.ledger), not_private=not_private, table=table))

    def _count_batch(self, current: _PartialCounts, X: Any, y: Any) -> tuple[Source, Ints]:
        """Count the rows of a batch as new partitions."""
        source = open_rows(X, y, current.design.encoding, invalid=self.invalid, estimator=type(self).__name__)
        count = partial(_count_shifted, current.count, current.n_partitions)
        return source, source.aggregate(count, n_jobs=self.n_jobs)

    def _start_partial_fit(self, X: Any, y: Any) -> _PartialCounts:
        """Design the forest and draw the key. Raise UseError if a unit may span batches."""
        _, neighbours = self._requested_privacy()
        if isinstance(neighbours.unit, RowsOf):
            raise UseError(
                f"rows of one {neighbours.unit.id!r} may occur in several batches, so rows per id cannot be bounded. "
                "Hint: fit a table, a folder or a cluster's frame, or set privacy_unit=3 to protect any 3 rows."
            )
        schema, not_private = self._resolve_schema(X, y)
        method = self._make_method()
        design = self._design_for(schema, method=method)
        count = method.make_count(design)
        reasons = [reason for reason in (not_private, SEEDED_NOISE if is_seeded() else None) if reason]
        return _PartialCounts(design, self.get_params(deep=False), count, count([]), 0, reasons, handle_of(X))

    def __getstate__(self) -> dict[str, Any]:
        if self._unfinished is not None:  # a shallow copy would add to the same counts
            raise _copy_error()
        return super().__getstate__()

    def _check_params(self, current: _PartialCounts) -> None:
        """Raise UseError if a parameter has changed since the first batch: the release must match the counts."""
        now = self.get_params(deep=False)
        changed = [name for name, value in current.params.items() if now[name] is not value and now[name] != value]
        if changed:
            raise UseError(
                f"{', '.join(changed)} changed since the first partial_fit. Hint: restore it, or start with a clone."
            )


def _copy_error() -> UseError:
    return UseError("an unfinished fit holds exact counts and cannot be copied or pickled. Hint: call release() first.")


def _class_texts(classes: Any) -> set[Any] | None:
    """Return the classes as canonical strings, or None if ``classes`` is not a list of classes."""
    try:
        return None if isinstance(classes, str) else set(to_canonical_texts(list(classes)))
    except TypeError:
        return None


def _count_shifted(count: Count, offset: int, batches: Iterable[Batch], *, n_jobs: int | None = 1) -> Ints:
    """Count batches as partitions numbered from ``offset``, so that no two rows share a position."""
    return count((batch._replace(partition=batch.partition + offset) for batch in batches), n_jobs=n_jobs)
