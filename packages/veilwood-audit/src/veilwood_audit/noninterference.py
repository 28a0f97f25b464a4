# SPDX-License-Identifier: Apache-2.0
"""Noninterference tests: if the outcome of every mechanism is forced, two neighbouring tables must look the same.

A program runs on two neighbouring tables. Each step at the release door has the same outcome in both runs, derived from
the public step alone. Any difference (an attribute, a byte of a file, a message) has therefore bypassed the door. The
exact inputs of the door are recorded: the privacy loss of their distance must not exceed the plan.

Secret choices are coupled by row. The tree and the pseudo-random draws of a row depend only on its contents, and the
first rows of an id are used, so that an added row does not affect other rows. Clocks are frozen. Only for audits: a fit
under ``force_outcomes`` contains no noise, and its certificate is false.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import logging
import math
import pickle
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from fractions import Fraction
from numbers import Number
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias, TypeVar
from unittest import mock

import numpy as np
import pandas as pd

from veilwood.arrays import AnyArray, Bools, Int32s, Ints
from veilwood.errors import SetupError
from veilwood.forests.adaptive.row_backend import MemoryBackend, ScoredRows
from veilwood.models.file import save
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.privacy.time_factors import SeriesNoise
from veilwood.siblings import CLUSTER_SOURCE
from veilwood.trees.counting import Assignment

_OPAQUE_TYPES = (type, ModuleType, BuiltinFunctionType)


def walk_values(root: object) -> Iterator[tuple[str, Any]]:
    """Yield every array, number, text and bytes object that is reachable from an object, with its path.

    Follows containers, attributes, closures, defaults and arguments of functions. Each object is visited once.

    Examples
    --------
    >>> list(walk_values({"a": [1, "x"]}))
    [("['a']", 'a'), ("['a'][0]", 1), ("['a'][1]", 'x')]
    """
    visited: dict[int, object] = {}  # keeps visited objects alive, so that no id is reused
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if value is None or isinstance(value, _OPAQUE_TYPES):
            continue
        if isinstance(value, Number | np.generic | str | bytes | bytearray):
            yield path, value
            continue
        if id(value) in visited:
            continue
        visited[id(value)] = value
        if isinstance(value, np.ndarray) and value.dtype != object:
            yield path, value
            continue
        if isinstance(value, Mapping):
            for key in value:
                if isinstance(key, str | bytes | Number):
                    yield f"{path}[{key!r}]", key
        stack.extend(reversed(list(_child_values(path, value))))


def _child_values(path: str, parent: Any) -> Iterator[tuple[str, object]]:
    """Yield the direct children of an object, with their paths."""
    if isinstance(parent, pd.DataFrame | pd.Series | pd.Index):
        yield f"{path}.values", parent.to_numpy()
    elif isinstance(parent, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in parent.items())
        yield from ((f"{path}<key>", key) for key in parent if not isinstance(key, str | bytes | Number))
    elif isinstance(parent, list | tuple | Set | np.ndarray):
        yield from ((f"{path}[{index}]", value) for index, value in enumerate(parent))
    elif isinstance(parent, MethodType):
        yield f"{path}.__self__", parent.__self__
        yield f"{path}.__func__", parent.__func__
    elif isinstance(parent, FunctionType):
        for cell in parent.__closure__ or ():
            try:
                yield f"{path}<closure>", cell.cell_contents
            except ValueError:  # an empty closure cell
                continue
        yield f"{path}<defaults>", (parent.__defaults__, parent.__kwdefaults__)
        yield f"{path}<attributes>", parent.__dict__
    else:
        yield from ((f"{path}.{name}", value) for name, value in getattr(parent, "__dict__", {}).items())
        slots = (slot for kind in type(parent).__mro__ for slot in getattr(kind, "__slots__", ()))
        yield from ((f"{path}.{slot}", getattr(parent, slot)) for slot in slots if hasattr(parent, slot))
        if hasattr(parent, "func") and hasattr(parent, "keywords"):  # functools.partial stores its arguments in C
            yield f"{path}<arguments>", (parent.func, parent.args, parent.keywords)


def find_leaks(root: object, secrets: Mapping[str, object]) -> list[str]:
    """Return the paths at which an object contains one of the given private values.

    A number matches an equal number, an entry or the length of an array, and a word of a text. An array matches a
    contiguous part of another array, or its bytes in a bytes object. Bytes match a part of a bytes object.

    Examples
    --------
    >>> find_leaks({"rows": 1613, "counts": np.array([5, 7, 9])}, {"n": 1613, "leaves": np.array([7, 9])})
    ["n at ['rows']", "leaves at ['counts']"]
    """
    return [
        f"{name} at {path or 'the top'}"
        for path, value in walk_values(root)
        for name, secret in secrets.items()
        if _contains_secret(value, secret)
    ]


def _contains_secret(value: Any, secret: Any) -> bool:
    """Return True if a visited value contains a secret."""
    if isinstance(secret, bytes):
        return isinstance(value, bytes | bytearray | np.ndarray | str) and secret in _raw_bytes(value)
    if isinstance(secret, np.ndarray):
        if isinstance(value, bytes | bytearray):
            forms = [secret.astype(form) for form in (np.int64, np.int32, np.uint16, np.float64)]
            return any(form.tobytes() in value for form in forms if np.array_equal(form, secret))
        return isinstance(value, np.ndarray) and _contains_sequence(value, secret)
    if isinstance(value, np.ndarray):
        return secret in value.shape or (value.dtype.kind in "iuf" and bool((value == secret).any()))
    if isinstance(value, str):
        return str(secret) in "".join(c if c.isalnum() or c in "._-" else " " for c in value).split()
    return isinstance(value, Number | np.generic) and not isinstance(value, bool) and bool(value == secret)


def _raw_bytes(value: bytes | bytearray | AnyArray | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)


def _contains_sequence(array: AnyArray, wanted: AnyArray) -> bool:
    """Return True if the flattened ``array`` contains the numbers of ``wanted`` in sequence, whatever the types."""
    if array.dtype.kind not in "iuf" or array.size < wanted.size or not wanted.size:
        return False
    # In both memory orders, because exact counts may be stored by class.
    needle = wanted.astype(np.float64).ravel().tobytes()
    for order in ("C", "F"):
        haystack = array.astype(np.float64).ravel(order=order).tobytes()
        offset = haystack.find(needle)
        while offset >= 0:
            if offset % 8 == 0:  # aligned to a float64
                return True
            offset = haystack.find(needle, offset + 1)
    return False


def diff_values(one: object, other: object) -> list[str]:
    """Return the paths of all reachable values in which two objects differ, or an empty list if they are equal.

    Examples
    --------
    >>> diff_values({"depth": 3, "cuts": np.array([1, 2])}, {"depth": 3, "cuts": np.array([1, 5])})
    ["['cuts']"]
    """
    first, second = dict(walk_values(one)), dict(walk_values(other))
    paths = [path for path in first if path not in second] + [path for path in second if path not in first]
    return paths + [path for path in first if path in second and not _is_identical(first[path], second[path])]


def _is_identical(one: Any, other: Any) -> bool:
    """Return True if two values are equal byte for byte, including the type, dtype and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, float | np.floating) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and repr(one) == repr(other)  # 0.0 equals -0.0, but prints differently


AnyTable = TypeVar("AnyTable")
TableProgram: TypeAlias = Callable[[AnyTable, Path], Any]
"""Program that takes a table and a folder for its input files. Its return value counts as visible."""

IN_MEMORY_ONLY: Final = ("_exact",)
"""Attributes of a MatrixForestPredictor with exact counts. They are never pickled, saved or printed."""

_FORCED_SIZES: Final = (1, 20, 1000)  # magnitudes of forced numbers, in units of the sensitivity
_MAX_FORCED_CELLS: Final = 40
_INADMISSIBLE_SCORE: Final = -(1 << 61)  # replaces the score of an inadmissible candidate


@dataclass(frozen=True)
class DoorEvent:
    """One step at the release door: its public facts, and its exact input, which only an audit may see."""

    step: Step | None  # None if a mechanism was called without the door
    public: tuple[Any, ...]
    exact: Mapping[int, int] | Ints


@dataclass
class Trace:
    """Everything visible after a run, by name, and the events at the release door."""

    visible: dict[str, Any] = field(default_factory=dict)
    events: list[DoorEvent] = field(default_factory=list)


# -- outcomes that depend on the public step alone ----------------------------------------------------------


class _ForcedOutcomes:
    """Forced outcomes of the steps at the release door: functions of name, shape and order of the step."""

    def __init__(self, draw: int, events: list[DoorEvent], answers: Sequence[Any] | None) -> None:
        self.draw, self.events, self.answers = draw, events, answers
        self.step: Step | None = None  # the step that is being released

    def _make_generator(self, shape: tuple[int, ...]) -> np.random.Generator:
        name = self.step.name if self.step else ""
        seed_text = f"{self.draw} {name} {shape} {len(self.events)}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:8], "big"))

    def record_event(self, public: tuple[Any, ...], exact: Mapping[int, int] | Ints) -> None:
        """Record the input of a mechanism."""
        self.events.append(DoorEvent(self.step, public, exact))

    def force_counts(self, mechanism: DiscreteLaplace | DiscreteGaussian | JointLaplace, exact: Any) -> Ints:
        exact = np.array(exact, np.int64)
        rng = self._make_generator(exact.shape)
        self.record_event((exact.shape,), exact)
        if self.answers is not None:
            return np.array(self.answers[len(self.events) - 1])
        unit = 1 if self.step is None else self.step.sensitivity
        unit = math.isqrt(unit) if isinstance(mechanism, DiscreteGaussian) else unit
        size = int(rng.choice(_FORCED_SIZES))
        outcome = rng.integers(-size, 4 * size, exact.shape) * unit + rng.integers(0, unit + 1, exact.shape)
        if isinstance(mechanism, JointLaplace):  # all tables of one forced outcome must have the same total
            ends = np.cumsum(mechanism.sizes, dtype=np.int64)
            totals = np.add.reduceat(outcome, ends - mechanism.sizes, axis=0)
            outcome[ends - 1] += totals[:1] - totals
        return np.asarray(outcome, np.int64)

    def force_cells(self, mechanism: SparseLaplace, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        rng = self._make_generator((n_cells,))
        self.record_event((n_cells,), dict(zip(cells.tolist(), counts.tolist(), strict=True)))
        if self.answers is not None:
            return tuple(map(np.array, self.answers[len(self.events) - 1]))  # type: ignore[return-value]
        outcome = np.unique(rng.integers(0, n_cells, _MAX_FORCED_CELLS))
        return outcome, rng.integers(1, 20, len(outcome))

    def force_selections(self, mechanism: Any, scores: Any, admissible: Any = None) -> Ints:
        exact = np.array(scores, np.int64)
        rng = self._make_generator(exact.shape)
        mask = np.broadcast_to(True if admissible is None else np.asarray(admissible), exact.shape)
        self.record_event((exact.shape, mask.tobytes()), np.where(mask, exact, _INADMISSIBLE_SCORE))
        if self.answers is not None:
            return np.array(self.answers[len(self.events) - 1])
        return np.asarray(np.where(mask, rng.random(exact.shape), -1.0).argmax(axis=-1), np.int64)


def _trees_by_content(assignment: Assignment, partition: int, first_row: int, n_rows: int) -> Int32s:
    """Assign each row to a tree by its contents instead of its index, which an added row would change."""
    caller = inspect.currentframe()
    batch = None if caller is None or caller.f_back is None else caller.f_back.f_locals.get("batch")
    if batch is None:
        raise AssertionError("the caller has no variable `batch`: rows cannot be assigned to trees by their contents")
    rows = (row.tobytes() + target.tobytes() for row, target in zip(batch.codes, batch.target, strict=True))
    trees = [hashlib.sha256(assignment.key + row).digest()[0] % assignment.n_trees for row in rows]
    return np.array(trees, np.int32)


def sample_by_content(held: MemoryBackend, rows: ScoredRows, share: float) -> Bools:
    """Sample each row by its contents instead of its index, which an added row would change."""
    cells = zip(rows.cells.T, rows.target, strict=True)
    draws = [hashlib.sha256(row.tobytes() + target.tobytes()).digest()[0] for row, target in cells]
    return np.array(draws, np.int64) < share * 256


def _rising_bytes(count: int) -> bytes:
    """Return increasing 64-bit integers as random bytes, so that the first rows of every id are selected."""
    return np.arange(-(-count // 8), dtype="<u8").tobytes()[:count]


def _forbid_draw(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("noise was drawn without a mechanism")


class _FrozenTime(ModuleType):
    """Stand-in for the module ``time`` with frozen clocks."""

    def __getattr__(self, name: str) -> Any:
        if name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
            return lambda: 1000.0
        return (lambda: 10**12) if name.endswith("_ns") else getattr(time, name)


class _FrozenDatetime(datetime):
    """Subclass of ``datetime`` whose ``now`` is constant."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _FrozenDatetime:
        return cls(2001, 2, 3, 12, tzinfo=tz)


@contextmanager
def force_outcomes(draw: int = 0, answers: Sequence[Any] | None = None) -> Iterator[list[DoorEvent]]:
    """Force all mechanisms, secret choices and clocks; yield the list of events at the release door.

    Parameters
    ----------
    draw : int
        Seed of the forced outcomes.
    answers : sequence, optional
        Outcomes in the order of events, such as those of another run, which is then replayed.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> leaves = []
    >>> for n_rows in (700, 701):
    ...     with force_outcomes() as events:
    ...         forest = vw.RandomTreesClassifier(car.schema, n_estimators=2, max_depth=2, random_state=0)
    ...         leaves.append(forest.fit(car.X[:n_rows], car.y[:n_rows]).leaf_counts_)
    >>> bool((leaves[0] == leaves[1]).all()), events[0].step.name, int(events[0].exact.sum())
    (True, 'class counts of leaves', 1402)
    """
    events: list[DoorEvent] = []
    outcomes = _ForcedOutcomes(draw, events, answers)

    def wrap_method(method: Callable[..., Any]) -> Callable[..., Any]:
        def call_with_step(door: Door, step: Step, *args: Any) -> Any:
            outcomes.step = step
            try:
                return method(door, step, *args)
            finally:
                outcomes.step = None

        return call_with_step

    with ExitStack() as patches:

        def patch_attribute(owner: Any, name: str, value: Any) -> None:
            patches.enter_context(mock.patch.object(owner, name, value))

        for name in ("release_counts", "release_sparse", "select"):
            patch_attribute(Door, name, wrap_method(getattr(Door, name)))
        for additive in (DiscreteLaplace, DiscreteGaussian, JointLaplace):
            patch_attribute(additive, "perturb", lambda noise, exact: outcomes.force_counts(noise, exact))
            patch_attribute(additive, "sample", _forbid_draw)
        patch_attribute(SparseLaplace, "perturb", lambda noise, *cells: outcomes.force_cells(noise, *cells))
        for choice in (NoisyMax, PermuteAndFlip, ExponentialMechanism):
            patch_attribute(choice, "select", lambda choice, *scores: outcomes.force_selections(choice, *scores))
        patch_attribute(Assignment, "trees_of_rows", _trees_by_content)
        for backend in _drawing_backends():
            patch_attribute(backend, "_draw_mask", sample_by_content)
        patch_attribute(entropy, "_random_bytes", _rising_bytes)
        patch_attribute(spending, "_accountant", spending._ProcessAccountant())  # earlier runs must have no effect
        for name, module in list(sys.modules.items()):
            if name.split(".")[0].startswith("veilwood") and name != __name__:
                if getattr(module, "datetime", None) is datetime:
                    patch_attribute(module, "datetime", _FrozenDatetime)
                if getattr(module, "time", None) is time:
                    patch_attribute(module, "time", _FrozenTime("time"))
        yield events


def _drawing_backends() -> list[type[MemoryBackend]]:
    """Return the backends that draw rows: in memory, and in partitions of clusters if that package is installed."""
    with suppress(SetupError):
        CLUSTER_SOURCE.load()  # defines a subclass with its own draws
    return [MemoryBackend, *MemoryBackend.__subclasses__()]


# -- visible values ------------------------------------------------------------------------------------------


def result_or_error(action: Callable[[], Any]) -> Any:
    """Return the result of an action, or the type and the traceback of its error."""
    try:
        return action()
    except Exception as error:
        return [type(error).__name__, *traceback.format_exception(error)]


def visible_values(model: Any, queries: Any = None, *, path: str = "model.veilwood") -> dict[str, Any]:
    """Return everything that the recipient of a fitted model can see. Writes a model file to ``path``."""
    visible: dict[str, Any] = {
        # Collected before predictions add cached attributes.
        "attributes": dict(
            walk_values({name: part for name, part in vars(model).items() if name not in IN_MEMORY_ONLY})
        ),
        "pickle": result_or_error(lambda: pickle.dumps(model)),
        "repr": repr(model),
        "str": str(model),
        # scikit-learn numbers its HTML elements, and prints memory addresses.
        "html": result_or_error(lambda: re.sub(r"(?<=-id-)\d+|(?<=x)[0-9a-f]{8,}", "", model._repr_html_())),
        "saved": result_or_error(lambda: save(model, path)),
    }
    for name in ("plan_", "privacy_"):
        if hasattr(model, name):
            part = getattr(model, name)
            visible[name] = [str(part), part.to_json(), *(f() for f in [getattr(part, "to_markdown", None)] if f)]
    if hasattr(model, "explain"):
        visible["explain"] = result_or_error(lambda: [effects := model.explain(), str(effects)])
    for name in ("predict", "predict_proba", "answer") if queries is not None else ():
        if hasattr(model, name):
            visible[name] = result_or_error(lambda name=name: getattr(model, name)(queries))  # type: ignore[misc]
    for ledger in (getattr(model, "ledger", None), getattr(model, "ledger_", None)):
        if isinstance(ledger, Ledger):
            visible["ledger"] = [str(entry) for entry in ledger.entries()]
    return visible


def record_trace(program: TableProgram[AnyTable], table: AnyTable, folder: Path, draw: int = 0) -> Trace:
    """Run a program on a table with all outcomes forced, and return everything visible.

    The program is called with the table and a folder for its input files. The working directory is an empty folder for
    its output files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    inputs, outputs = folder / "in", folder / "out"
    inputs.mkdir(parents=True)
    outputs.mkdir()
    trace, stdout, stderr, log = Trace(), io.StringIO(), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    with (
        force_outcomes(draw) as trace.events,
        contextlib.chdir(outputs),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        _capture_logs(handler),
        warnings.catch_warnings(record=True) as recorded_warnings,
    ):
        warnings.simplefilter("always")
        warnings.filterwarnings(
            "ignore", category=DeprecationWarning
        )  # warnings that other libraries raise about each other
        trace.visible["returned"] = result_or_error(lambda: program(table, inputs))
        trace.visible["spent here"] = str(spending.process_spend())
    trace.visible["stdout"], trace.visible["stderr"] = stdout.getvalue(), stderr.getvalue()
    trace.visible["warnings"] = [
        f"{w.category.__name__} {w.message} {w.filename}:{w.lineno}" for w in recorded_warnings
    ]
    trace.visible["log"] = log.getvalue()
    trace.visible["files"] = {
        str(path.relative_to(outputs)): _file_contents(path) for path in sorted(outputs.rglob("*")) if path.is_file()
    }
    return trace


@contextmanager
def _capture_logs(handler: logging.Handler) -> Iterator[None]:
    """Capture all log records of the library, and records of other loggers from level INFO."""
    with ExitStack() as stack:
        for name, level in (("", logging.INFO), ("veilwood", logging.DEBUG)):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        yield


def _file_contents(path: Path) -> tuple[int, int, Any]:
    """Return the mode, length and contents of a file; for SQLite its SQL dump, because the pages contain salts."""
    raw = path.read_bytes()
    contents: Any = raw
    if raw.startswith(b"SQLite format 3"):
        with contextlib.closing(sqlite3.connect(path)) as database:
            contents = list(database.iterdump())
    return path.stat().st_mode, len(raw), contents


# -- comparing -----------------------------------------------------------------------------------------------


def find_interference(
    program: TableProgram[AnyTable], one: AnyTable, other: AnyTable, *, draw: int = 0, allowed: Fraction | None = None
) -> list[str]:
    """Return all differences between two neighbouring tables that bypass the release door; an empty list if none.

    Parameters
    ----------
    program : callable
        Takes a table and a folder for its input files. Its return value counts as visible.
    one, other
        Neighbouring tables.
    draw : int
        Seed of the forced outcomes.
    allowed : Fraction, optional
        Maximum privacy loss of all events together: epsilon, or rho for zCDP. Each event is also checked against
        its plan.
    """
    return compare_runs(program, one, other, draw=draw, allowed=allowed)[1]


def compare_runs(
    program: TableProgram[AnyTable], one: AnyTable, other: AnyTable, *, draw: int = 0, allowed: Fraction | None = None
) -> tuple[Trace, list[str]]:
    """Return the trace of the first table and the result of ``find_interference``, for tests of coverage."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        trace = record_trace(program, one, folder, draw)
        neighbour = record_trace(program, other, folder, draw)
        differences = diff_traces(trace, neighbour, allowed)
        if any(not line.startswith("cost") for line in differences):
            # Run once first: an effect that occurs once per process, such as a warning, must not count as a difference.
            trace = record_trace(program, one, folder, draw)
            differences = diff_traces(trace, neighbour, allowed)
    return trace, differences


def diff_traces(one: Trace, other: Trace, allowed: Fraction | None = None) -> list[str]:
    """Return the differences between two traces, and the events whose privacy loss exceeds the plan."""
    differences = [f"seen{path}" for path in diff_values(one.visible, other.visible)]
    if len(one.events) != len(other.events):
        return [*differences, f"passages: {len(one.events)} and {len(other.events)}"]
    total = Fraction(0)
    for number, (event, neighbour) in enumerate(zip(one.events, other.events, strict=True)):
        step = event.step
        if step is None or neighbour.step is None:
            differences.append(f"passage {number} was not through the door")
        elif step != neighbour.step or event.public != neighbour.public:
            differences.append(f"passage {number} ({step.name}) is not the same step")
        else:
            cost, distance = event_cost(step, event.exact, neighbour.exact)
            total += cost
            if distance > step.sensitivity:
                differences.append(f"cost of {step.name}: moved by {distance}, planned for {step.sensitivity}")
            elif not _is_within_loss(step, cost):
                differences.append(f"cost of {step.name}: {float(cost):.6g}, planned {step.loss_text}")
    if allowed is not None and total > allowed:
        differences.append(f"cost of all: {float(total):.6g}, promised {float(allowed):.6g}")
    return differences


def event_cost(step: Step, one: Any, other: Any) -> tuple[Fraction, int]:
    """Return the privacy loss (epsilon or rho) of two exact inputs, and their distance in the norm of the step."""
    mechanism: Any = step.mechanism
    if isinstance(mechanism, SeriesNoise):  # one release of a series, whose weighted counts are the exact inputs
        cost, moved = event_cost(replace(step, mechanism=mechanism.base), one, other)
        return cost, math.ceil(Fraction(moved, mechanism.factor.norm(squared=mechanism.is_gaussian)))
    if isinstance(mechanism, SparseLaplace):
        moved = sum(abs(one.get(cell, 0) - other.get(cell, 0)) for cell in {*one, *other})
        return mechanism.epsilon(moved), moved
    difference = one - other
    if isinstance(mechanism, DiscreteLaplace):
        moved = int(np.abs(difference).sum())
        return mechanism.epsilon(moved), moved
    if isinstance(mechanism, JointLaplace):
        moved = mechanism.norm(difference)
        return mechanism.epsilon(moved), moved
    if isinstance(mechanism, DiscreteGaussian):
        moved = int((difference**2).sum())
        return mechanism.rho(moved), moved
    if mechanism is None:
        return Fraction(0), 0
    if isinstance(mechanism, ThresholdedGaussian):
        raise AssertionError(
            "thresholded counts of unknown keys cannot be compared here: the tests of `discover` compare them"
        )
    # Selections: the loss of each is proportional to the range of its score changes, and the losses add up.
    admissible = one != _INADMISSIBLE_SCORE  # public, so the same in both runs
    highest = np.where(admissible, difference, _INADMISSIBLE_SCORE).max(axis=-1)
    lowest = np.where(admissible, difference, -_INADMISSIBLE_SCORE).min(axis=-1)
    ranges = (highest - lowest).ravel().tolist() or [0]
    fractions = [Fraction(moved, mechanism.score_range) for moved in ranges]
    if step.loss.delta == 0:
        return mechanism.epsilon * sum(fractions), max(ranges)
    divisor = 8 if isinstance(mechanism, ExponentialMechanism) else 2
    return mechanism.epsilon**2 * sum(fraction**2 for fraction in fractions) / divisor, max(ranges)


def _is_within_loss(step: Step, cost: Fraction) -> bool:
    """Return True if a privacy loss does not exceed the planned loss of a step."""
    loss = step.loss
    if loss.epsilon is None:
        return True
    if loss.delta == 0:
        return cost <= loss.epsilon
    if isinstance(step.mechanism, DiscreteLaplace | JointLaplace | SparseLaplace):  # convert pure epsilon to rho
        cost = cost**2 / 2
    return loss.rho is not None and cost <= loss.rho
