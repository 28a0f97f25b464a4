# SPDX-License-Identifier: Apache-2.0
"""Tries to falsify the library's claims: statistics, small neighbouring tables, and walks over objects.

It can refute a guarantee and never proves one: proofs are in ``proofs/``. Whole estimators are attacked in ``attacks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import combinations, product
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from veilwood.privacy import Adjacency, Neighbours

__all__ = [
    "ALPHA",
    "Distances",
    "differences",
    "epsilon_lower_bound",
    "leaks",
    "neighbouring_tables",
    "one_run_lower_bound",
    "walk",
    "worst_distances",
    "worst_log_ratio",
]

ALPHA = 5e-9
"""Level of one test: with up to 200 of them, a sound library raises a false alarm once in a million runs."""

Cells: TypeAlias = tuple[int, ...]


# -- statistics -------------------------------------------------------------------------------------------


def epsilon_lower_bound(k1: int, n1: int, k0: int, n0: int, *, delta: float = 0.0, alpha: float = ALPHA) -> float:
    """Return an epsilon that the mechanism is shown to exceed, from how often an event happened on two neighbours.

    Parameters
    ----------
    k1, n1 : int
        Hits and runs on the table that makes the event likely.
    k0, n0 : int
        Hits and runs on its neighbour.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the returned value is too large, whatever the mechanism: each of the two Clopper-Pearson
        bounds is taken at level alpha / 2. The event must have been fixed before the runs.

    Examples
    --------
    >>> round(epsilon_lower_bound(7000, 10000, 1000, 10000), 2)
    1.74
    >>> epsilon_lower_bound(500, 1000, 500, 1000)
    0.0
    """
    low = float(stats.beta.ppf(alpha / 2, k1, n1 - k1 + 1)) if k1 else 0.0
    high = float(stats.beta.ppf(1 - alpha / 2, k0 + 1, n0 - k0)) if k0 < n0 else 1.0
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def one_run_lower_bound(
    correct: int, guesses: int, *, canaries: int | None = None, delta: float = 0.0, alpha: float = ALPHA
) -> float:
    """Return an epsilon that one run is shown to exceed, from guesses which canaries were in the table.

    Each canary was in by a fair coin of its own. Under pure epsilon the number of right guesses is dominated by a
    binomial of success e^epsilon / (1 + e^epsilon); a delta adds to its tail (Steinke, Nasr, Jagielski 2023,
    Theorem 5.2).

    Parameters
    ----------
    correct, guesses : int
        Right guesses, and all guesses; with a delta their number must have been fixed before the run.
    canaries : int, optional
        Canaries there were; as many as guesses if not given. Only matters with a delta.
    delta : float
        The delta of the claim.
    alpha : float
        Probability that the returned value is too large, whatever the mechanism.

    Examples
    --------
    >>> round(one_run_lower_bound(7311, 10000), 2)
    0.87
    """
    if delta == 0:
        low = float(stats.beta.ppf(alpha, correct, guesses - correct + 1)) if correct else 0.0
        return max(0.0, math.log(low / (1 - low))) if low > 0 else 0.0

    slips = np.arange(1, correct + 1)

    def chance(epsilon: float) -> float:
        """Bound the probability of so many right guesses."""
        success = 1 / (1 + math.exp(-epsilon))
        tail = float(stats.binom.sf(correct - 1, guesses, success))
        closer = stats.binom.sf(correct - slips - 1, guesses, success) - tail
        return tail + 2 * (canaries or guesses) * delta * float((closer / slips).max(initial=0.0))

    if chance(0.0) > alpha:
        return 0.0
    # The bound grows with epsilon; past log(guesses) or so it is near 1.
    return float(optimize.brentq(lambda epsilon: chance(epsilon) - alpha, 0.0, math.log(guesses) + 2, xtol=1e-6))


def worst_log_ratio(law: ArrayLike, neighbour: ArrayLike) -> float:
    """Return the largest log-ratio, in either direction, of two laws given outcome by outcome.

    Examples
    --------
    >>> round(worst_log_ratio([0.75, 0.25], [0.5, 0.5]), 4)
    0.6931
    >>> worst_log_ratio([1.0, 0.0], [0.5, 0.5])
    inf
    """
    p, q = np.asarray(law, float), np.asarray(neighbour, float)
    possible = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(p[possible]) - np.log(q[possible])).max(initial=0.0))


# -- all small tables -------------------------------------------------------------------------------------


def neighbouring_tables(
    n_cells: int, max_records: int, adjacency: Adjacency = "add-remove", rows: int = 1
) -> Iterator[tuple[Cells, Cells]]:
    """Return every pair of neighbouring tables with at most ``max_records`` records out of ``n_cells`` cells.

    A table is a sequence of cells. Records that both tables have keep their place: what depends on places is drawn
    for each place independently, so an added record may as well come last (proofs/disjoint-trees.md).

    Parameters
    ----------
    n_cells, max_records : int
        How many different records there are, and how many a table may hold.
    adjacency : {"add-remove", "replace-one"}
        Up to ``rows`` records are appended, or exchanged for others.
    rows : int
        Records of one unit.

    Examples
    --------
    >>> list(neighbouring_tables(2, 1))
    [((), (0,)), ((), (1,))]
    >>> list(neighbouring_tables(2, 1, "replace-one"))
    [((0,), (1,)), ((1,), (0,))]
    """
    cells = range(n_cells)
    for size in range(max_records + 1):
        for table in product(cells, repeat=size):
            if adjacency == "add-remove":
                for added in range(1, min(rows, max_records - size) + 1):
                    yield from ((table, table + more) for more in product(cells, repeat=added))
                continue
            for places in combinations(range(size), min(rows, size)):
                for other in product(cells, repeat=len(places)):
                    changed = list(table)
                    for place, cell in zip(places, other, strict=True):
                        changed[place] = cell
                    if tuple(changed) != table:
                        yield table, tuple(changed)


@dataclass(frozen=True)
class Distances:
    """The largest distances of a query between neighbours, exact."""

    l1: int
    squared_l2: int
    score_range: int


def worst_distances(
    query: Callable[[Cells], NDArray[np.int64]], n_cells: int, max_records: int, neighbours: Neighbours
) -> Distances:
    """Recompute the sensitivity of an integer query by trying all small neighbours.

    Parameters
    ----------
    query : callable
        Maps a table, given as a tuple of cell numbers, to an array of integers of one shape.

    Examples
    --------
    >>> worst_distances(lambda table: np.bincount(np.array(table, int), minlength=2), 2, 2, Neighbours("replace-one"))
    Distances(l1=2, squared_l2=2, score_range=2)
    """
    number: dict[Cells, int] = {}
    pairs = [
        (number.setdefault(one, len(number)), number.setdefault(other, len(number)))
        for one, other in neighbouring_tables(n_cells, max_records, neighbours.adjacency, neighbours.unit.at_most)
    ]
    values = np.array([np.asarray(query(table)).ravel() for table in number])
    one, other = np.array(pairs).T
    l1 = squared_l2 = score_range = 0
    for start in range(0, len(pairs), 4096):
        moved = values[other[start : start + 4096]] - values[one[start : start + 4096]]
        l1 = max(l1, int(np.abs(moved).sum(axis=1).max()))
        squared_l2 = max(squared_l2, int((moved**2).sum(axis=1).max()))
        score_range = max(score_range, int(np.ptp(moved, axis=1).max()))
    return Distances(l1, squared_l2, score_range)


# -- what an object holds ---------------------------------------------------------------------------------

_OPAQUE = (type, ModuleType, BuiltinFunctionType)


def walk(thing: object) -> Iterator[tuple[str, Any]]:
    """Return every array, number, text and bytes that can be reached from an object, with the way to it.

    Follows containers, attributes, closures, defaults and arguments of functions; each object is entered once.

    Examples
    --------
    >>> list(walk({"a": [1, "x"]}))
    [("['a']", 'a'), ("['a'][0]", 1), ("['a'][1]", 'x')]
    """
    entered: dict[int, object] = {}  # keeps what it has seen alive, so that no number is used twice
    waiting: list[tuple[str, object]] = [("", thing)]
    while waiting:
        path, here = waiting.pop()
        if here is None or isinstance(here, _OPAQUE):
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
        waiting.extend(reversed(list(_parts(path, here))))


def _parts(path: str, here: Any) -> Iterator[tuple[str, object]]:
    """Return what an object consists of, one step down."""
    if isinstance(here, pd.DataFrame | pd.Series | pd.Index):
        yield f"{path}.values", here.to_numpy()
    elif isinstance(here, Mapping):
        yield from ((f"{path}[{key!r}]", value) for key, value in here.items())
        yield from ((f"{path}<key>", key) for key in here if not isinstance(key, str | bytes | Number))
    elif isinstance(here, list | tuple | Set | np.ndarray):
        yield from ((f"{path}[{place}]", value) for place, value in enumerate(here))
    elif isinstance(here, MethodType):
        yield f"{path}.__self__", here.__self__
        yield f"{path}.__func__", here.__func__
    elif isinstance(here, FunctionType):
        for cell in here.__closure__ or ():
            try:
                yield f"{path}<closure>", cell.cell_contents
            except ValueError:  # a cell that was never filled
                continue
        yield f"{path}<defaults>", (here.__defaults__, here.__kwdefaults__)
        yield f"{path}<attributes>", here.__dict__
    else:
        yield from ((f"{path}.{name}", value) for name, value in getattr(here, "__dict__", {}).items())
        slots = (slot for kind in type(here).__mro__ for slot in getattr(kind, "__slots__", ()))
        yield from ((f"{path}.{slot}", getattr(here, slot)) for slot in slots if hasattr(here, slot))
        if hasattr(here, "func") and hasattr(here, "keywords"):  # functools.partial keeps its arguments in C
            yield f"{path}<arguments>", (here.func, here.args, here.keywords)


def leaks(thing: object, secrets: Mapping[str, object]) -> list[str]:
    """Return where an object holds one of the given private values.

    A number is found as a number, as an entry or a length of an array, and as a word of a text; an array as a stretch
    of an array, or its bytes in a blob; bytes in bytes.

    Examples
    --------
    >>> leaks({"rows": 1613, "counts": np.array([5, 7, 9])}, {"n": 1613, "leaves": np.array([7, 9])})
    ["n at ['rows']", "leaves at ['counts']"]
    """
    return [
        f"{name} at {path or 'the top'}"
        for path, value in walk(thing)
        for name, secret in secrets.items()
        if _holds(value, secret)
    ]


def _holds(value: Any, secret: Any) -> bool:
    """Whether a value from a walk shows a secret."""
    if isinstance(secret, bytes):
        return isinstance(value, bytes | bytearray | np.ndarray | str) and secret in _raw(value)
    if isinstance(secret, np.ndarray):
        if isinstance(value, bytes | bytearray):
            forms = [secret.astype(form) for form in (np.int64, np.int32, np.uint16, np.float64)]
            return any(form.tobytes() in value for form in forms if np.array_equal(form, secret))
        return isinstance(value, np.ndarray) and _has_stretch(value, secret)
    if isinstance(value, np.ndarray):
        return secret in value.shape or (value.dtype.kind in "iuf" and bool((value == secret).any()))
    if isinstance(value, str):
        return str(secret) in "".join(c if c.isalnum() or c in "._-" else " " for c in value).split()
    return isinstance(value, Number | np.generic) and not isinstance(value, bool) and bool(value == secret)


def _raw(value: bytes | bytearray | NDArray[Any] | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)


def _has_stretch(array: NDArray[Any], wanted: NDArray[Any]) -> bool:
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


def differences(one: object, other: object) -> list[str]:
    """Return where two objects differ in any value that can be reached from them; empty if they are alike.

    Examples
    --------
    >>> differences({"depth": 3, "cuts": np.array([1, 2])}, {"depth": 3, "cuts": np.array([1, 5])})
    ["['cuts']"]
    """
    first, second = dict(walk(one)), dict(walk(other))
    paths = [path for path in first if path not in second] + [path for path in second if path not in first]
    return paths + [path for path in first if path in second and not _alike(first[path], second[path])]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)
