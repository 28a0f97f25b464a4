# SPDX-License-Identifier: Apache-2.0
"""Strategies that were searched before, kept in a folder of the user's cache by the public design they are for.

A search takes seconds and follows from public facts alone. What is read back goes the way of a plan's choices: it is
checked, sensitivities and noise are computed from it anew, and what does not fit is searched again. So a file that was
changed can cost accuracy, never privacy. Nothing is kept for schemas that were read off the data.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from veilwood._version import __version__
from veilwood.atomic_file import cache_folder, write_file
from veilwood.bounded import is_whole, read_json, read_text
from veilwood.errors import VeilwoodError
from veilwood.forests.method import Asked
from veilwood.forests.noisy_leaves import HasPlan

MOST_BYTES: Final = 1 << 24  # of a file
MOST_FILES: Final = 1024  # the oldest goes first
KEPT: Final = ("structure", "division", "shares", "strategies", "alternatives", "divisions")

H = TypeVar("H", bound=HasPlan)


def searched_once(asked: Asked, size: object, design: Callable[[Asked], H]) -> H:
    """Design with the choices that an equal search has made before, or search and keep them.

    Parameters
    ----------
    asked : Asked
        What the search follows from, with the size.
    size : object
        The number of trees and their height, which may be chosen and not asked for.
    design : callable
        Searches, or takes what ``choices`` hold.
    """
    file = None if asked.choices else _file(asked, "strategies", size)
    if file is None:
        return design(asked)
    with suppress(OSError, VeilwoodError, TypeError, ValueError, KeyError, AttributeError):
        choices = read_json(read_text(file, MOST_BYTES))
        known: dict[str, Any] = {name: choices[name] for name in KEPT if name in choices}
        made = design(replace(asked, choices=known))
        if made.plan.choices.get("structure") == known["structure"]:
            return made
    made = design(asked)
    kept: dict[str, Any] = {name: made.plan.choices[name] for name in KEPT if name in made.plan.choices}
    if "strategies" in kept:
        _keep(file, kept)
    return made


def compared_once(asked: Asked, size: object, compare: Callable[[], tuple[int, float]]) -> tuple[int, float]:
    """Return the number of leaves of a size and the error of one that were found before, or find and keep them."""
    file = _file(asked, "errors", size)
    if file is None:
        return compare()
    with suppress(OSError, VeilwoodError, TypeError, ValueError, KeyError):
        found = read_json(read_text(file, MOST_BYTES))
        leaves, error = found["leaves"], found["error"]
        if is_whole(leaves, 1) and isinstance(error, float) and 0 < error < math.inf:
            return int(leaves), error
    leaves, error = compare()
    _keep(file, {"leaves": leaves, "error": error})
    return leaves, error


def _file(asked: Asked, what: str, size: object) -> Path | None:
    """Name the file by all that a search follows from; there is none for a schema that was read off the data."""
    folder = None if asked.schema.inferred else cache_folder("strategies")
    facts = (
        __version__, what, size, asked.estimator, asked.schema.fingerprint(), str(asked.loss.epsilon),
        str(asked.loss.delta), str(asked.loss.rho), repr(asked.neighbours), asked.seed,
        json.dumps(asked.parameters, sort_keys=True),
    )  # fmt: skip
    return None if folder is None else folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"


def _keep(file: Path, found: dict[str, Any]) -> None:
    with suppress(OSError, VeilwoodError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(file, json.dumps(found).encode())
        others = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for oldest in others[:-MOST_FILES]:
            oldest.unlink(missing_ok=True)
