# SPDX-License-Identifier: Apache-2.0
"""Export of a model's released measurements to Parquet, and reconstruction of the model from them.

A fit is a function of its public inputs and of what the release door returned. ``rebuild`` runs the fit again without
rows, with a door that returns the recorded values. Equal trees and leaves show that nothing else about the rows is in
the model. It does not show that the values came from these mechanisms: no file can.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from veilwood.arrays import AnyArray, Bools, Ints
from veilwood.data.batches import Batch, Source
from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError, UseError, VeilwoodError, short_repr, shorten_text
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Design
from veilwood.models import file as model_file
from veilwood.privacy.door import Measurement, UnchargedDoor
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.privacy.time_factors import SeriesTerms, own_decisions, replan_series
from veilwood.safe_io import read_json, write_file

_METADATA_KEY: Final = b"veilwood"
_MAX_ZERO_ROWS: Final = 10**9

COLUMNS: Final = pa.schema(
    [
        pa.field("order", pa.int32()),  # in which the steps were released, from 0
        pa.field("step", pa.dictionary(pa.int32(), pa.string())),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),  # what is measured, for programs
        pa.field("released", pa.dictionary(pa.int32(), pa.string())),  # count, selection, or cell
        pa.field("shape", pa.dictionary(pa.int32(), pa.string())),  # of the step, as 8x2
        pa.field("index", pa.int64()),  # in the flattened shape; of a selection its row, of a cell its number
        pa.field("value", pa.int64()),
        pa.field("mechanism", pa.dictionary(pa.int32(), pa.string())),
        pa.field("variance", pa.float64()),  # of the noise on one count; null for selections
        pa.field("sensitivity", pa.int64()),
        pa.field("loss", pa.dictionary(pa.int32(), pa.string())),
    ]
)


# -- to and from Parquet -------------------------------------------------------------------------------------------


def export_measurements(model: BaseForest | str | PathLike[str], path: str | PathLike[str]) -> int:
    """Write every noisy value that a fit released to a Parquet file, one row per value. Spends no budget.

    The metadata of the file hold estimator, parameters, schema, plan and certificate, so that ``rebuild`` needs no
    other file. Equal models give equal bytes with the same version of Arrow.

    Parameters
    ----------
    model : fitted estimator, or path of a model file
        A model of this library. Models that were trained jointly, on servers, have no measurements.
    path : path
        Output file, by custom with the ending ``.parquet``.

    Returns
    -------
    int
        Number of values that were written.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=1.0, random_state=0).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     n_values = vw.export_measurements(forest, f"{folder}/car.parquet")
    ...     again = vw.rebuild(f"{folder}/car.parquet")
    >>> bool((again.predict_proba(car.X) == forest.predict_proba(car.X)).all())
    True
    """
    forest: Any = model_file.load(model) if isinstance(model, str | PathLike) else model
    measurements = _measurements_of(forest)
    steps = {step.name: step for step in forest.plan_.steps}
    tables = [_to_table(order, steps[each.step], each) for order, each in enumerate(measurements)]
    metadata = {_METADATA_KEY: json.dumps(model_file.public_metadata(forest), sort_keys=True).encode()}
    table = pa.concat_tables(tables).unify_dictionaries().replace_schema_metadata(metadata)
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_file(path, buffer.getvalue().to_pybytes())
    return int(table.num_rows)


def _measurements_of(model: Any) -> tuple[Measurement, ...]:
    measurements: tuple[Measurement, ...] = getattr(model, "measurements_", ())
    if not measurements:
        raise UseError(
            f"this {type(model).__name__} has no measurements: it is not fitted, or was trained jointly on servers. "
            "Hint: pass a model that was fitted by this version on rows in one place."
        )
    return measurements


def _to_table(order: int, step: Step, measurement: Measurement) -> pa.Table:
    first, *rest = measurement.values
    if rest:
        released, index, values = "cell", first, rest[0]
    else:
        released = "count" if first.shape == step.shape else "selection"
        index, values = np.arange(first.size), first.ravel()
    is_noisy = released != "selection" and step.mechanism is not None
    constants = {
        "order": order, "step": step.name, "kind": step.kind, "released": released,
        "shape": "x".join(map(str, step.shape)), "mechanism": step.mechanism_text,
        "variance": step.variance if is_noisy else None, "sensitivity": step.sensitivity, "loss": step.loss_text,
    }  # fmt: skip
    arrays = {
        name: pa.repeat(pa.scalar(value, _plain_type(COLUMNS.field(name).type)), len(values))
        for name, value in constants.items()
    }
    arrays |= {"index": pa.array(index, pa.int64()), "value": pa.array(values, pa.int64())}
    encoded = [
        arrays[field.name].dictionary_encode() if pa.types.is_dictionary(field.type) else arrays[field.name]
        for field in COLUMNS
    ]
    return pa.Table.from_arrays(encoded, schema=COLUMNS)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _read_parquet(path: str | PathLike[str]) -> tuple[BaseForest, tuple[Measurement, ...]]:
    """Return the estimator that the metadata describe, without a model, and the measurements."""
    try:
        table = pq.read_table(Path(path))
        metadata = read_json((table.schema.metadata or {})[_METADATA_KEY])
        estimator = model_file.construct_estimator(metadata)
        steps = {step.name: step for step in estimator.plan_.steps}
        measurements = tuple(_from_table(table, order, steps) for order in np.unique(table["order"]).tolist())
    except VeilwoodError:
        raise
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise ModelFileError(
            f"{short_repr(str(path))} is not a file of measurements ({shorten_text(str(error))}). "
            "Hint: write one with veilwood export MODEL --measurements -o FILE.parquet."
        ) from None
    return estimator, measurements


def _from_table(table: pa.Table, order: int, steps: dict[str, Step]) -> Measurement:
    rows = table.filter(pa.compute.equal(table["order"], order))
    step = steps[rows["step"][0].as_py()]
    index, values = rows["index"].to_numpy(), rows["value"].to_numpy()
    kind = rows["released"][0].as_py()
    taken = (index, values) if kind == "cell" else (values.reshape(step.shape) if kind == "count" else values,)
    if not step.may_release(taken):
        raise ModelFileError(
            f"the values of step {short_repr(step.name)} do not fit the plan. Hint: export them again."
        )
    return Measurement(step.name, taken)


# -- the model again ----------------------------------------------------------------------------------------------


class ReplayDoor(UnchargedDoor):
    """Release door that returns recorded values. It sees no rows, draws no noise and charges nothing."""

    def __init__(self, plan: Plan, measurements: Iterable[Measurement]) -> None:
        super().__init__(plan, None)
        self._recorded = {each.step: each.values for each in measurements}

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        """Return the recorded counts."""
        self._admit_step(step, exact.shape)
        return self._take_values(step)[0]

    def release_sparse(self, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Return the recorded cells and their counts."""
        self._admit_step(step, step.shape)
        return self._take_values(step)  # type: ignore[return-value]

    def release_above_threshold(self, step: Step, counts: Ints) -> tuple[Ints, Ints]:
        """Return the recorded keys and their counts."""
        return self.release_sparse(step, counts, counts, len(counts))

    def select(self, step: Step, scores: Ints, admissible: Bools | None = None) -> Ints:
        """Return the recorded selections."""
        self._admit_step(step, (step.shape[0], scores.shape[1]))
        (selected,) = self._take_values(step)
        if selected.shape != (len(scores),):
            raise ModelFileError(f"step {short_repr(step.name)} needs {len(scores)} selections, not {len(selected)}.")
        return selected

    def _take_values(self, step: Step) -> tuple[Ints, ...]:
        if step.name not in self._recorded:
            raise ModelFileError(f"the values of step {short_repr(step.name)} are missing.")
        values = tuple(each.copy() for each in self._recorded.pop(step.name))
        return self._record_released(step, *values)

    @property
    def unused_steps(self) -> list[str]:
        """Names of recorded steps whose values were not used."""
        return list(self._recorded)


def rebuild(source: BaseForest | str | PathLike[str]) -> BaseForest:
    """Rebuild a model from its released measurements and its public inputs. Reads no rows and spends no budget.

    Parameters
    ----------
    source : fitted estimator, or path of a Parquet file
        A model, or the path of a file that ``export_measurements`` wrote.

    Returns
    -------
    estimator
        The fitted estimator, with the certificate of the original. Its trees and leaves equal those of the original if
        the original was computed from these measurements.

    Raises
    ------
    ModelFileError
        If the measurements do not lead to the plan of the original, or some of them were not used.

    See Also
    --------
    export_measurements : Writes the measurements of a model.
    """
    if isinstance(source, str | PathLike):
        estimator, measurements = _read_parquet(source)
        schema = estimator.schema
    else:
        measurements, schema = _measurements_of(source), source.schema_
        estimator = model_file.construct_estimator(model_file.public_metadata(source))
    plan, method = estimator.plan_, estimator._make_method()
    # A plan that was refined from released values is derived again; any other plan contains its decisions. A release of
    # a series has the design of a single fit.
    terms = SeriesTerms.from_choices(plan.choices["series"]) if "series" in plan.choices else None
    if terms is not None:
        method = method.for_series()
    decisions = own_decisions(plan)
    asked = estimator._fit_request(schema, plan.public_seed, {} if plan.opened_as and terms is None else decisions)
    loss = asked.loss if terms is None else terms.design_loss(asked.loss)
    design: Design = method.make_design(replace(asked, loss=loss))
    try:
        with ReplayDoor(design.plan, measurements) as door:
            released = method.measure_rows(design, _zero_rows(plan, design.encoding), door, estimator.n_jobs)
    except (ValueError, IndexError, ArithmeticError) as error:  # values of other shapes than those asked for
        raise ModelFileError(f"the measurements cannot be those of the plan: {shorten_text(str(error))}") from None
    planned = door.plan
    if terms is not None:
        planned = replan_series(
            plan, asked.loss, lambda loss, own: method.make_design(replace(asked, loss=loss, decisions=own)).plan
        )
    differs = [name for name in plan.differences(planned) if not name.startswith(("opened_as:", "version:"))]
    if "chosen" in plan.choices:  # what was released in the first release decides the trees of a series
        noisy, before = door.measurements[0].values[0], own_decisions(plan, opening=True)
        opening = method.make_design(replace(asked, loss=loss, decisions=before))
        if method.choose(opening, noisy, plan.steps[0].variance) != own_decisions(plan):  # type: ignore[attr-defined]
            differs.append("choice of tables")
    if differs or door.unused_steps:
        raise ModelFileError(
            "the plan that follows from the measurements differs from that of the model: "
            f"{shorten_text('; '.join(differs or door.unused_steps))}."
        )
    estimator._set_model(schema, method.build_model(design, plan, released, estimator.n_jobs))
    estimator.measurements_ = tuple(door.measurements)
    return estimator


def _zero_rows(plan: Plan, encoding: Encoding) -> Source:
    """Return a source without rows or, if the number of rows is public, with that many rows of the first code."""
    counted = plan.layout.rows_known == "counted"
    n_rows = min(plan.layout.rows_planned or 0, _MAX_ZERO_ROWS) if counted else 0
    codes = np.broadcast_to(np.zeros(1, np.uint16), (n_rows, len(encoding.columns)))
    batch = Batch(codes, np.zeros(n_rows, np.int32), 0, 0)

    def read_zeros() -> Iterator[Any]:
        yield partial(_same_batch, batch)

    return Source(read_zeros, preserves_rows=counted)


def _same_batch(batch: Batch) -> Batch:
    return batch


def check_rebuilds(model: BaseForest, source: str | PathLike[str] | None = None) -> None:
    """Raise ModelFileError unless a model can be rebuilt from its measurements, or from a file with the same values.

    Floating-point values may differ in their last digits between machines; counts and trees may not.
    """
    rebuilt = rebuild(model if source is None else source)
    if not _same_values(model.measurements_, rebuilt.measurements_):
        raise ModelFileError("the measurements are those of another model.")
    original, again = model.model_.to_arrays(), rebuilt.model_.to_arrays()
    different = [
        name
        for name, array in original.items()
        if name not in again or array.shape != again[name].shape or not _is_close(array, again[name])
    ]
    if different or set(again) != set(original):
        raise ModelFileError(
            f"the model does not follow from its measurements: {', '.join(different) or 'it lacks arrays'} differ."
        )


def _same_values(one: Iterable[Measurement], other: Iterable[Measurement]) -> bool:
    mine, theirs = ({each.step: each.values for each in measurements} for measurements in (one, other))
    return mine.keys() == theirs.keys() and all(
        len(values) == len(theirs[step]) and all(map(np.array_equal, values, theirs[step]))
        for step, values in mine.items()
    )


def _is_close(one: AnyArray, other: AnyArray) -> bool:
    if one.dtype.kind in "iu":
        return np.array_equal(one, other)
    return np.allclose(one, other, rtol=1e-6, atol=1e-9)
