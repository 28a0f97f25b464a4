# SPDX-License-Identifier: Apache-2.0
"""Strategies that were searched before, kept in a folder of the user's cache by the public design they are for.

A search takes seconds and follows from public facts alone. What is read back goes the way of a plan's choices: it is
checked, sensitivities and noise are computed from it anew, and what does not fit is searched again. So a file that was
changed can cost accuracy, never privacy. Nothing is kept for schemas that were read off the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from veilwood._version import __version__
from veilwood.atomic_file import cache_folder, write_file
from veilwood.bounded import read_json, read_text
from veilwood.errors import VeilwoodError
from veilwood.forests.method import Asked, HasPlan

MOST_BYTES: Final = 1 << 24  # of a file
MOST_FILES: Final = 256  # the oldest goes first
KEPT: Final = ("structure", "division", "shares", "strategies", "law", "alternatives", "divisions")

H = TypeVar("H", bound=HasPlan)


def searched_once(asked: Asked, design: Callable[[Asked], H]) -> H:
    """Design with the choices that an equal search has made before, or search and keep them."""
    folder = None if asked.choices or asked.schema.inferred else cache_folder("strategies")
    if folder is None:
        return design(asked)
    file = folder / f"{_key(asked)}.json"
    with suppress(OSError, VeilwoodError, TypeError, ValueError, KeyError, AttributeError):
        choices = read_json(read_text(file, MOST_BYTES))
        known: dict[str, Any] = {name: choices[name] for name in KEPT if name in choices}
        made = design(replace(asked, choices=known))
        if made.plan.choices.get("structure") == known["structure"]:
            return made
    made = design(asked)
    kept = {name: made.plan.choices[name] for name in KEPT if name in made.plan.choices}
    if "strategies" in kept:
        with suppress(OSError, VeilwoodError):
            _keep(file, json.dumps(kept).encode())
    return made


def _key(asked: Asked) -> str:
    """Name all that a search follows from."""
    facts = (
        __version__, asked.estimator, asked.schema.fingerprint(), str(asked.loss.epsilon), str(asked.loss.delta),
        str(asked.loss.rho), repr(asked.neighbours), asked.seed, json.dumps(asked.parameters, sort_keys=True),
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _keep(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(file, content)
    others = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for oldest in others[:-MOST_FILES]:
        oldest.unlink(missing_ok=True)
