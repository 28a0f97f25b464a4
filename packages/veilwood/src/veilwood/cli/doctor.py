# SPDX-License-Identifier: Apache-2.0
"""``veilwood doctor``: whether this installation is whole. It looks and draws; it reads no private rows."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from importlib import metadata
from typing import Annotated, Any, Literal

import numpy as np
import typer

from veilwood._version import __version__
from veilwood.cli.ledger import existing_ledger, left_of
from veilwood.cli.options import AsJson, say
from veilwood.engines import gpu
from veilwood.errors import VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Geometric
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip

__all__ = ["Finding", "doctor", "examine"]

Condition = Literal["well", "missing", "broken"]
MARKS = {"well": "ok", "missing": "--", "broken": "BROKEN"}
DRAWS = 100_000
# A healthy sampler fails one look with a probability below 1e-9; half the scale is off by thousands.
MOST_SURPRISE = 6.2
FILE_DAMAGED = 4  # the exit code of main for what is broken


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Condition
    detail: str


def examine(ledgers: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Look at everything, one after the other.

    Examples
    --------
    >>> next(examine()).what
    'veilwood'
    """
    yield Finding("veilwood", "well", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    yield from _packages()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", "well", str(cores))
    yield _looked("gpu", "missing", _gpu)
    yield _looked("entropy source", "broken", _entropy)
    for name, draw in SAMPLERS.items():
        yield _looked(f"sampler {name}", "broken", draw)
    for ledger in ledgers:
        yield _looked(f"ledger {ledger}", "broken", partial(_ledger, ledger))


def doctor(
    ledger: Annotated[
        list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Verify it too; may be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether this installation is whole: versions, extras, cores, GPU, entropy, samplers, ledgers.

    Each sampler draws and is compared with its exact law; that takes seconds. What is missing can be installed; what is
    broken must not be used, and the command exits with code 4.

    \b
    Example:
      veilwood doctor --ledger visits.db
    """
    found = list(examine(tuple(ledger or ())))
    whole = all(finding.state != "broken" for finding in found)
    width = max(len(finding.what) for finding in found)
    lines = [f"{MARKS[finding.state]:6}  {finding.what:{width}}  {finding.detail}" for finding in found]
    end = "All is well." if whole else "Something is broken: do not fit anything private until it is mended."
    say(as_json, {"whole": whole, "findings": [asdict(one) for one in found]}, "\n".join([*lines, end]))
    if not whole:
        raise typer.Exit(FILE_DAMAGED)


def _looked(what: str, otherwise: Condition, look: Callable[[], str]) -> Finding:
    """Look, and say what was seen or what went wrong."""
    try:
        return Finding(what, "well", look())
    except VeilwoodError as error:
        return Finding(what, otherwise, str(error))
    except Exception as error:  # a doctor tells of every illness, also of those nobody thought of
        return Finding(what, otherwise, f"{type(error).__name__}: {error}")


# -- versions and extras -------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    """Tell the version of what is required, and which extras are there; all of it as the package itself declares it."""
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("veilwood") or []:
        named = re.match(r"[\w.-]+", line)
        asked = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if named is not None and named.group() != "veilwood":
            extras.setdefault(asked.group(1) if asked else "", []).append(named.group())
    for name in extras.pop("", []):
        version = _version(name)
        yield Finding(name, "broken" if version is None else "well", version or "is required and not installed")
    for extra, names in sorted(extras.items()):
        if extra in ("dev", "docs"):
            continue
        absent = [name for name in dict.fromkeys(names) if _version(name) is None]
        text = f"without {', '.join(absent)}. Hint: pip install 'veilwood[{extra}]'" if absent else "installed"
        yield Finding(f"extra [{extra}]", "missing" if absent else "well", text)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# -- the machine ---------------------------------------------------------------------------------------------


def _gpu() -> str:
    with gpu.use():
        return "can be used: with vw.gpu.use(): ..."


def _entropy() -> str:
    """Ask for bits, and refuse a source that repeats itself or leans to one side."""
    entropy.check()
    first, second = entropy.words(DRAWS // 64), entropy.words(DRAWS // 64)
    _require(not entropy.is_seeded(), "is a test stream, which protects nobody")
    _require(not np.array_equal(first, second), "repeats itself")
    ones = int(np.unpackbits(np.concatenate([first, second]).view(np.uint8)).sum())
    bits = 64 * (len(first) + len(second))
    _require(abs(ones - bits / 2) < MOST_SURPRISE * (bits / 4) ** 0.5, f"has {ones} ones among {bits} bits")
    return "the operating system's, answering"


def _ledger(place: str) -> str:
    book = existing_ledger(place)
    head = book.verify()
    waiting = sum(entry.state == "reserved" for entry in book.entries())
    left = f"; {waiting} reserved and not settled (veilwood ledger resolve)" if waiting else ""
    return f"intact, {left_of(book)}, last hash {head}{left}"


# -- samplers ------------------------------------------------------------------------------------------------


def _additive(law: Any) -> str:
    """Draw, and compare how often each small number came with its exact probability."""
    drawn = law.sample(DRAWS)
    values = np.arange(-8, 9)
    _compare((drawn[:, None] == values).sum(axis=0), law.pmf(values))
    far = 1 - float(law.pmf(values).sum())
    _compare(np.array([np.abs(drawn) > 8]).sum(axis=1), np.array([far]))
    return f"{DRAWS:,} draws follow the exact law"


def _selection(mechanism: Any) -> str:
    """Choose among three candidates many times, and compare with the exact probabilities."""
    scores = np.array([0, 1, 2])
    chosen = mechanism.select(np.tile(scores, (DRAWS, 1)))
    _compare(np.bincount(chosen, minlength=3), mechanism.law(scores))
    return f"{DRAWS:,} choices follow the exact law"


def _compare(counts: Any, probabilities: Any) -> None:
    expected = DRAWS * np.asarray(probabilities, float)
    spread = np.sqrt(np.maximum(expected * (1 - expected / DRAWS), 1.0))
    surprise = float((np.abs(np.asarray(counts) - expected) / spread).max())
    _require(surprise < MOST_SURPRISE, f"is {surprise:.1f} standard deviations from its law")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ArithmeticError(problem)


SAMPLERS: dict[str, Callable[[], str]] = {
    "geometric": lambda: _additive(Geometric(2)),
    "discrete Laplace": lambda: _additive(DiscreteLaplace(Fraction(5, 2))),
    "discrete Gaussian": lambda: _additive(DiscreteGaussian(4)),
    "noisy max": lambda: _selection(NoisyMax(1, 1)),
    "permute-and-flip": lambda: _selection(PermuteAndFlip(1, 1)),
    "exponential": lambda: _selection(ExponentialMechanism(1, 1)),
}
