# SPDX-License-Identifier: Apache-2.0
"""Noninterference: what every mechanism releases is forced, so that nothing visible may tell two neighbours apart.

A program runs on two neighbouring tables. Each step at the door gets the same answer both times, which follows from the
public step alone. Whatever then differs (an attribute, a byte of a file, a message) has passed beside the door. The
exact numbers that met the door are recorded: their distance must cost no more than the plan says.

Secret choices are coupled by row: a row's tree and its coins follow from its contents, and an id keeps its first rows,
so that an added row leaves the others where they are. The clock stands still. Only for audits: what is made in
``force_outcomes`` has no noise in it, and its certificate is false.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from fractions import Fraction
from numbers import Number
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias, TypeVar
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veilwood.engines.cluster.source import PartitionBackend
from veilwood.forests.adaptive.row_backend import MemoryBackend, ScoredRows
from veilwood.models.file import save
from veilwood.privacy import accountant as spending
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import Ledger
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood.trees.counting import Assignment

__all__ = [
    "DoorEvent",
    "Trace",
    "compare_runs",
    "diff_values",
    "find_interference",
    "find_leaks",
    "force_outcomes",
    "record_trace",
    "result_or_error",
    "visible_values",
    "walk_values",
]


_OPAQUE_TYPES = (type, ModuleType, BuiltinFunctionType)


def walk_values(root: object) -> Iterator[tuple[str, Any]]:
    """Return every array, number, text and bytes that can be reached from an object, with the way to it.

    Follows containers, attributes, closures, defaults and arguments of functions; each object is entered once.

    Examples
    --------
    >>> list(walk_values({"a": [1, "x"]}))
    [("['a']", 'a'), ("['a'][0]", 1), ("['a'][1]", 'x')]
    """
    entered: dict[int, object] = {}  # keeps what it has seen alive, so that no number is used twice
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, here = waiting.pop()
        if here is None or isinstance(here, _OPAQUE_TYPES):
            continue
        if isinstance(here, Number | np.generic | str | bytes | bytearray):
            yield path, here
            continue
        if id(here) in entered:
            continue
        entered[id(here)] = here
        if isinstance(here, np.ndarray) and here.dtype != object:
            yield path, here
            continue
        if isinstance(here, Mapping):
            for key in here:
                if isinstance(key, str | bytes | Number):
                    yield f"{path}[{key!r}]", key
        waiting.extend(reversed(list(_child_values(path, here))))


def _child_values(path: str, parent: Any) -> Iterator[tuple[str, object]]:
    """Return what an object consists of, one step down."""
    if isinstance(parent, pd.DataFrame | pd.Series | pd.Index):
        yield f"{path}.values", parent.to_numpy()
    elif isinstance(parent, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in parent.items())
        yield from ((f"{path}<key>", key) for key in parent if not isinstance(key, str | bytes | Number))
    elif isinstance(parent, list | tuple | Set | np.ndarray):
        yield from ((f"{path}[{place}]", value) for place, value in enumerate(parent))
    elif isinstance(parent, MethodType):
        yield f"{path}.__self__", parent.__self__
        yield f"{path}.__func__", parent.__func__
    elif isinstance(parent, FunctionType):
        for cell in parent.__closure__ or ():
            try:
                yield f"{path}<closure>", cell.cell_contents
            except ValueError:  # a cell that was never filled
                continue
        yield f"{path}<defaults>", (parent.__defaults__, parent.__kwdefaults__)
        yield f"{path}<attributes>", parent.__dict__
    else:
        yield from ((f"{path}.{name}", value) for name, value in getattr(parent, "__dict__", {}).items())
        slots = (slot for kind in type(parent).__mro__ for slot in getattr(kind, "__slots__", ()))
        yield from ((f"{path}.{slot}", getattr(parent, slot)) for slot in slots if hasattr(parent, slot))
        if hasattr(parent, "func") and hasattr(parent, "keywords"):  # functools.partial keeps its arguments in C
            yield f"{path}<arguments>", (parent.func, parent.args, parent.keywords)


def find_leaks(root: object, secrets: Mapping[str, object]) -> list[str]:
    """Return where an object holds one of the given private values.

    A number is found as a number, as an entry or a length of an array, and as a word of a text; an array as a stretch
    of an array, or its bytes in a blob; bytes in bytes.

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
    """Whether a value from a walk shows a secret."""
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


def _raw_bytes(value: bytes | bytearray | NDArray[Any] | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)


def _contains_sequence(array: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Whether the numbers of ``wanted`` follow one another in ``array``, flattened, whatever the types."""
    if array.dtype.kind not in "iuf" or array.size < wanted.size or not wanted.size:
        return False
    # By rows and by columns, as exact counts may be kept one class at a time.
    needle = wanted.astype(np.float64).ravel().tobytes()
    for order in ("C", "F"):
        hay = array.astype(np.float64).ravel(order=order).tobytes()
        place = hay.find(needle)
        while place >= 0:
            if place % 8 == 0:
                return True
            place = hay.find(needle, place + 1)
    return False


def diff_values(one: object, other: object) -> list[str]:
    """Return where two objects differ in any value that can be reached from them; empty if they are alike.

    Examples
    --------
    >>> diff_values({"depth": 3, "cuts": np.array([1, 2])}, {"depth": 3, "cuts": np.array([1, 5])})
    ["['cuts']"]
    """
    first, second = dict(walk_values(one)), dict(walk_values(other))
    paths = [path for path in first if path not in second] + [path for path in second if path not in first]
    return paths + [path for path in first if path in second and not _is_identical(first[path], second[path])]


def _is_identical(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last byte: also their type, and the type and shape of an array."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, float | np.floating) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and repr(one) == repr(other)  # 0.0 equals -0.0 and does not look like it


Ints = NDArray[np.int64]
AnyTable = TypeVar("AnyTable")
TableProgram: TypeAlias = Callable[[AnyTable, Path], Any]
"""Takes a table and a folder to write its input to; what it returns counts as seen."""

IN_MEMORY_ONLY: Final = ("_exact",)
"""What a MatrixForestPredictor holds by its nature; it is never pickled, saved or printed."""

_FORCED_SIZES: Final = (1, 20, 1000)  # of forced numbers, in units of what one row does
_MAX_FORCED_CELLS: Final = 40
_INADMISSIBLE_SCORE: Final = -(1 << 61)  # in place of a score that no choice can see


@dataclass(frozen=True)
class DoorEvent:
    """One step at the door: what was public about it, and the exact numbers, which only an audit may see."""

    step: Step | None  # None: a mechanism that was called beside the door
    public: tuple[Any, ...]
    exact: Mapping[int, int] | Ints


@dataclass
class Trace:
    """What a run left for others to see, by name, and what met the door."""

    visible: dict[str, Any] = field(default_factory=dict)
    events: list[DoorEvent] = field(default_factory=list)


# -- outcomes that depend on the public step alone ----------------------------------------------------------


class _ForcedOutcomes:
    """Gives every step at the door its outcome: a function of its name, its shape and its place in the order."""

    def __init__(self, draw: int, events: list[DoorEvent], answers: Sequence[Any] | None) -> None:
        self.draw, self.events, self.answers = draw, events, answers
        self.step: Step | None = None  # that is passing the door now

    def _make_generator(self, shape: tuple[int, ...]) -> np.random.Generator:
        name = self.step.name if self.step else ""
        place = f"{self.draw} {name} {shape} {len(self.events)}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(place.encode()).digest()[:8], "big"))

    def record_event(self, public: tuple[Any, ...], exact: Mapping[int, int] | Ints) -> None:
        """Write down what met a mechanism."""
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
        forced_to = rng.integers(-size, 4 * size, exact.shape) * unit + rng.integers(0, unit + 1, exact.shape)
        if isinstance(mechanism, JointLaplace):  # no outcome has tables of different totals
            ends = np.cumsum(mechanism.sizes, dtype=np.int64)
            totals = np.add.reduceat(forced_to, ends - mechanism.sizes, axis=0)
            forced_to[ends - 1] += totals[:1] - totals
        return np.asarray(forced_to, np.int64)

    def force_cells(self, mechanism: SparseLaplace, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        rng = self._make_generator((n_cells,))
        self.record_event((n_cells,), dict(zip(cells.tolist(), counts.tolist(), strict=True)))
        if self.answers is not None:
            return tuple(map(np.array, self.answers[len(self.events) - 1]))  # type: ignore[return-value]
        found = np.unique(rng.integers(0, n_cells, _MAX_FORCED_CELLS))
        return found, rng.integers(1, 20, len(found))

    def force_selections(self, mechanism: Any, scores: Any, admissible: Any = None) -> Ints:
        exact = np.array(scores, np.int64)
        rng = self._make_generator(exact.shape)
        mask = np.broadcast_to(True if admissible is None else np.asarray(admissible), exact.shape)
        self.record_event((exact.shape, mask.tobytes()), np.where(mask, exact, _INADMISSIBLE_SCORE))
        if self.answers is not None:
            return np.array(self.answers[len(self.events) - 1])
        return np.asarray(np.where(mask, rng.random(exact.shape), -1.0).argmax(axis=-1), np.int64)


def _trees_by_content(assignment: Assignment, partition: int, first_row: int, n_rows: int) -> NDArray[np.int32]:
    """Give each row to a tree by its contents instead of its place, which an added row before it would move."""
    caller = inspect.currentframe()
    batch = None if caller is None or caller.f_back is None else caller.f_back.f_locals.get("batch")
    if batch is None:
        raise AssertionError("rows were given to trees where no `batch` is at hand, so they cannot be coupled by row")
    rows = (row.tobytes() + target.tobytes() for row, target in zip(batch.codes, batch.target, strict=True))
    trees = [hashlib.sha256(assignment.key + row).digest()[0] % assignment.n_trees for row in rows]
    return np.array(trees, np.int32)


def sample_by_content(held: MemoryBackend, rows: ScoredRows, share: float) -> NDArray[np.bool_]:
    """Draw each row by its contents; by its place, rows after an added one would change sides."""
    cells = zip(rows.cells.T, rows.target, strict=True)
    coins = [hashlib.sha256(row.tobytes() + target.tobytes()).digest()[0] for row, target in cells]
    return np.array(coins, np.int64) < share * 256


def _rising_bytes(count: int) -> bytes:
    """Random words that rise: the first rows of an id are kept, wherever the rows of others stand."""
    return np.arange(-(-count // 8), dtype="<u8").tobytes()[:count]


def _forbid_draw(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("noise was drawn beside the mechanisms")


class _FrozenTime(ModuleType):
    """The module ``time`` with every clock stopped."""

    def __getattr__(self, name: str) -> Any:
        if name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
            return lambda: 1000.0
        return (lambda: 10**12) if name.endswith("_ns") else getattr(time, name)


class _FrozenDatetime(datetime):
    """The class ``datetime`` whose now is always the same."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _FrozenDatetime:
        return cls(2001, 2, 3, 12, tzinfo=tz)


@contextmanager
def force_outcomes(draw: int = 0, answers: Sequence[Any] | None = None) -> Iterator[list[DoorEvent]]:
    """Force all mechanisms, secret choices and clocks; give the list in which passages at the door are recorded.

    Parameters
    ----------
    draw : int
        Which outcomes: each number gives others.
    answers : sequence, optional
        The outcomes themselves, in the order of the passages: those of another run, which is then replayed.

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
    passages: list[DoorEvent] = []
    outcomes = _ForcedOutcomes(draw, passages, answers)

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
        for held in (MemoryBackend, PartitionBackend):
            patch_attribute(held, "_draw_mask", sample_by_content)
        patch_attribute(entropy, "_random_bytes", _rising_bytes)
        patch_attribute(spending, "_accountant", spending._ProcessAccountant())  # a run must not know of the one before
        for name, module in list(sys.modules.items()):
            if name.split(".")[0].startswith("veilwood") and name != __name__:
                if getattr(module, "datetime", None) is datetime:
                    patch_attribute(module, "datetime", _FrozenDatetime)
                if getattr(module, "time", None) is time:
                    patch_attribute(module, "time", _FrozenTime("time"))
        yield passages


# -- what can be seen ----------------------------------------------------------------------------------------


def result_or_error(action: Callable[[], Any]) -> Any:
    """Return what an action returns, or the whole story of the error that it ends with."""
    try:
        return action()
    except Exception as error:
        return [type(error).__name__, *traceback.format_exception(error)]


def visible_values(model: Any, queries: Any = None, *, path: str = "model.veilwood") -> dict[str, Any]:
    """Return everything that someone who gets a fitted model can see of it; a model file is written to ``path``."""
    shown: dict[str, Any] = {
        # Walked now, before predictions derive more.
        "attributes": dict(
            walk_values({name: part for name, part in vars(model).items() if name not in IN_MEMORY_ONLY})
        ),
        "pickle": result_or_error(lambda: pickle.dumps(model)),
        "repr": repr(model),
        "str": str(model),
        # scikit-learn numbers its pages, and shows where in memory an object lies.
        "html": result_or_error(lambda: re.sub(r"(?<=-id-)\d+|(?<=x)[0-9a-f]{8,}", "", model._repr_html_())),
        "saved": result_or_error(lambda: save(model, path)),
    }
    for name in ("plan_", "privacy_"):
        if hasattr(model, name):
            part = getattr(model, name)
            shown[name] = [str(part), part.to_json(), *(f() for f in [getattr(part, "to_markdown", None)] if f)]
    if hasattr(model, "explain"):
        shown["explain"] = result_or_error(lambda: [found := model.explain(), str(found)])
    for name in ("predict", "predict_proba", "answer") if queries is not None else ():
        if hasattr(model, name):
            shown[name] = result_or_error(lambda name=name: getattr(model, name)(queries))  # type: ignore[misc]
    for ledger in (getattr(model, "ledger", None), getattr(model, "ledger_", None)):
        if isinstance(ledger, Ledger):
            shown["ledger"] = [str(entry) for entry in ledger.entries()]
    return shown


def record_trace(program: TableProgram[AnyTable], table: AnyTable, folder: Path, draw: int = 0) -> Trace:
    """Run a program on a table, with all outcomes forced, and return what it left to be seen.

    The program is called with the table and a folder for its input, from within an empty folder for its output.
    """
    shutil.rmtree(folder, ignore_errors=True)
    inputs, outputs = folder / "in", folder / "out"
    inputs.mkdir(parents=True)
    outputs.mkdir()
    seen, said, complained, logged = Trace(), io.StringIO(), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    with (
        force_outcomes(draw) as seen.events,
        contextlib.chdir(outputs),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
        _capture_logs(handler),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of other libraries, about each other
        seen.visible["returned"] = result_or_error(lambda: program(table, inputs))
        seen.visible["spent here"] = str(spending.process_spend())
    seen.visible["stdout"], seen.visible["stderr"] = said.getvalue(), complained.getvalue()
    seen.visible["warnings"] = [f"{w.category.__name__} {w.message} {w.filename}:{w.lineno}" for w in warned]
    seen.visible["log"] = logged.getvalue()
    seen.visible["files"] = {
        str(path.relative_to(outputs)): _file_contents(path) for path in sorted(outputs.rglob("*")) if path.is_file()
    }
    return seen


@contextmanager
def _capture_logs(handler: logging.Handler) -> Iterator[None]:
    """Hear all that the library logs, and what others log from INFO on."""
    with ExitStack() as stack:
        for name, level in (("", logging.INFO), ("veilwood", logging.DEBUG)):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        yield


def _file_contents(path: Path) -> tuple[int, int, Any]:
    """Return mode, length and contents of a file; those of a database by what is in it, as its pages hold salts."""
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
    """Return how a program tells two neighbouring tables apart other than through the door; empty if it does not.

    Parameters
    ----------
    program : callable
        Takes a table and a folder to write its input to; what it returns counts as seen.
    one, other
        The tables.
    draw : int
        Which outcomes are forced.
    allowed : Fraction, optional
        The most that all passages together may cost: epsilon, or rho for zCDP. Each step is held to its own plan.
    """
    return compare_runs(program, one, other, draw=draw, allowed=allowed)[1]


def compare_runs(
    program: TableProgram[AnyTable], one: AnyTable, other: AnyTable, *, draw: int = 0, allowed: Fraction | None = None
) -> tuple[Trace, list[str]]:
    """Return the trace of one table beside what ``find_interference`` finds: a test can see what it has reached."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        seen = record_trace(program, one, folder, draw)
        neighbour = record_trace(program, other, folder, draw)
        found = diff_traces(seen, neighbour, allowed)
        if any(not line.startswith("cost") for line in found):
            # Something that happens once in a process (a first warning) is no difference between tables: try again.
            seen = record_trace(program, one, folder, draw)
            found = diff_traces(seen, neighbour, allowed)
    return seen, found


def diff_traces(one: Trace, other: Trace, allowed: Fraction | None = None) -> list[str]:
    """Return how two traces differ, and which passages cost more than planned."""
    found = [f"seen{path}" for path in diff_values(one.visible, other.visible)]
    if len(one.events) != len(other.events):
        return [*found, f"passages: {len(one.events)} and {len(other.events)}"]
    total = Fraction(0)
    for number, (mine, yours) in enumerate(zip(one.events, other.events, strict=True)):
        if mine.step is None or yours.step is None:
            found.append(f"passage {number} was not through the door")
        elif mine.step != yours.step or mine.public != yours.public:
            found.append(f"passage {number} ({mine.step.name}) is not the same step")
        else:
            cost, worst = event_cost(mine.step, mine.exact, yours.exact)
            total += cost
            if worst > mine.step.sensitivity:
                found.append(f"cost of {mine.step.name}: moved by {worst}, planned for {mine.step.sensitivity}")
            elif not _is_within_loss(mine.step, cost):
                found.append(f"cost of {mine.step.name}: {float(cost):.6g}, planned {mine.step.loss_text}")
    if allowed is not None and total > allowed:
        found.append(f"cost of all: {float(total):.6g}, promised {float(allowed):.6g}")
    return found


def event_cost(step: Step, one: Any, other: Any) -> tuple[Fraction, int]:
    """Return what a pair of exact inputs costs, epsilon or rho, and how far they are apart, as the step measures it."""
    mechanism = step.mechanism
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
        raise AssertionError("counts of unknown things are compared in the tests of discovery")
    # Choices: each costs in proportion to the range of its change, and what one unit does to all of them adds up.
    admissible = one != _INADMISSIBLE_SCORE  # the same for both: it is public
    highest = np.where(admissible, difference, _INADMISSIBLE_SCORE).max(axis=-1)
    lowest = np.where(admissible, difference, -_INADMISSIBLE_SCORE).min(axis=-1)
    ranges = (highest - lowest).ravel().tolist() or [0]
    shares = [Fraction(moved, mechanism.score_range) for moved in ranges]
    if step.loss.delta == 0:
        return mechanism.epsilon * sum(shares), max(ranges)
    divisor = 8 if isinstance(mechanism, ExponentialMechanism) else 2
    return mechanism.epsilon**2 * sum(share**2 for share in shares) / divisor, max(ranges)


def _is_within_loss(step: Step, cost: Fraction) -> bool:
    """Whether a cost is within the planned loss of a step."""
    loss = step.loss
    if loss.epsilon is None:
        return True
    if loss.delta == 0:
        return cost <= loss.epsilon
    if isinstance(step.mechanism, DiscreteLaplace | JointLaplace | SparseLaplace):  # pure noise as a part of rho
        cost = cost**2 / 2
    return loss.rho is not None and cost <= loss.rho
