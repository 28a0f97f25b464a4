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
from veilwood.cli.ledger import describe_remaining, open_existing_ledger
from veilwood.cli.options import AsJson, print_result
from veilwood.engines import gpu
from veilwood.errors import VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Geometric
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip

__all__ = ["Finding", "doctor", "run_checks"]

CheckState = Literal["well", "missing", "broken"]
STATE_MARKS = {"well": "ok", "missing": "--", "broken": "BROKEN"}
N_DRAWS = 100_000
# A healthy sampler fails one look with a probability below 1e-9; half the scale is off by thousands.
MAX_DEVIATIONS = 6.2
EXIT_DAMAGED = 4  # the exit code of main for what is broken


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: CheckState
    detail: str


def run_checks(ledgers: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Look at everything, one after the other.

    Examples
    --------
    >>> next(run_checks()).what
    'veilwood'
    """
    yield Finding("veilwood", "well", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    yield from _check_packages()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", "well", str(cores))
    yield _run_check("gpu", "missing", _check_gpu)
    yield _run_check("entropy source", "broken", _check_entropy)
    for name, draw in SAMPLERS.items():
        yield _run_check(f"sampler {name}", "broken", draw)
    for ledger in ledgers:
        yield _run_check(f"ledger {ledger}", "broken", partial(_check_ledger, ledger))


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
    found = list(run_checks(tuple(ledger or ())))
    whole = all(finding.state != "broken" for finding in found)
    width = max(len(finding.what) for finding in found)
    lines = [f"{STATE_MARKS[finding.state]:6}  {finding.what:{width}}  {finding.detail}" for finding in found]
    end = "All is well." if whole else "Something is broken: do not fit anything private until it is mended."
    print_result(as_json, {"whole": whole, "findings": [asdict(one) for one in found]}, "\n".join([*lines, end]))
    if not whole:
        raise typer.Exit(EXIT_DAMAGED)


def _run_check(name: str, failure_state: CheckState, check: Callable[[], str]) -> Finding:
    """Look, and say what was seen or what went wrong."""
    try:
        return Finding(name, "well", check())
    except VeilwoodError as error:
        return Finding(name, failure_state, str(error))
    except Exception as error:  # a doctor tells of every illness, also of those nobody thought of
        return Finding(name, failure_state, f"{type(error).__name__}: {error}")


# -- versions and extras -------------------------------------------------------------------------------------


def _check_packages() -> Iterator[Finding]:
    """Tell the version of what is required, and which extras are there; all of it as the package itself declares it."""
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("veilwood") or []:
        named = re.match(r"[\w.-]+", line)
        asked = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if named is not None and named.group() != "veilwood":
            extras.setdefault(asked.group(1) if asked else "", []).append(named.group())
    for name in extras.pop("", []):
        version = _installed_version(name)
        yield Finding(name, "broken" if version is None else "well", version or "is required and not installed")
    for extra, names in sorted(extras.items()):
        if extra in ("dev", "docs"):
            continue
        absent = [name for name in dict.fromkeys(names) if _installed_version(name) is None]
        text = f"without {', '.join(absent)}. Hint: pip install 'veilwood[{extra}]'" if absent else "installed"
        yield Finding(f"extra [{extra}]", "missing" if absent else "well", text)


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# -- the machine ---------------------------------------------------------------------------------------------


def _check_gpu() -> str:
    with gpu.use():
        return "can be used: with vw.gpu.use(): ..."


def _check_entropy() -> str:
    """Ask for bits, and refuse a source that repeats itself or leans to one side."""
    entropy.require_entropy()
    first, second = entropy.random_integers(N_DRAWS // 64), entropy.random_integers(N_DRAWS // 64)
    _require_healthy(not entropy.is_seeded(), "is a test stream, which protects nobody")
    _require_healthy(not np.array_equal(first, second), "repeats itself")
    ones = int(np.unpackbits(np.concatenate([first, second]).view(np.uint8)).sum())
    bits = 64 * (len(first) + len(second))
    _require_healthy(abs(ones - bits / 2) < MAX_DEVIATIONS * (bits / 4) ** 0.5, f"has {ones} ones among {bits} bits")
    return "the operating system's, answering"


def _check_ledger(place: str) -> str:
    book = open_existing_ledger(place)
    head = book.verify()
    waiting = sum(entry.state == "reserved" for entry in book.entries())
    left = f"; {waiting} reserved and not settled (veilwood ledger resolve)" if waiting else ""
    return f"intact, {describe_remaining(book)}, last hash {head}{left}"


# -- samplers ------------------------------------------------------------------------------------------------


def _check_noise(mechanism: Any) -> str:
    """Draw, and compare how often each small number came with its exact probability."""
    drawn = mechanism.sample(N_DRAWS)
    values = np.arange(-8, 9)
    _compare_with_exact((drawn[:, None] == values).sum(axis=0), mechanism.pmf(values))
    far = 1 - float(mechanism.pmf(values).sum())
    _compare_with_exact(np.array([np.abs(drawn) > 8]).sum(axis=1), np.array([far]))
    return f"{N_DRAWS:,} draws follow the exact law"


def _check_selection(mechanism: Any) -> str:
    """Choose among three candidates many times, and compare with the exact probabilities."""
    scores = np.array([0, 1, 2])
    chosen = mechanism.select(np.tile(scores, (N_DRAWS, 1)))
    _compare_with_exact(np.bincount(chosen, minlength=3), mechanism.probabilities(scores))
    return f"{N_DRAWS:,} choices follow the exact law"


def _compare_with_exact(counts: Any, probabilities: Any) -> None:
    expected = N_DRAWS * np.asarray(probabilities, float)
    spread = np.sqrt(np.maximum(expected * (1 - expected / N_DRAWS), 1.0))
    surprise = float((np.abs(np.asarray(counts) - expected) / spread).max())
    _require_healthy(surprise < MAX_DEVIATIONS, f"is {surprise:.1f} standard deviations from its law")


def _require_healthy(holds: bool, problem: str) -> None:
    if not holds:
        raise ArithmeticError(problem)


SAMPLERS: dict[str, Callable[[], str]] = {
    "geometric": lambda: _check_noise(Geometric(2)),
    "discrete Laplace": lambda: _check_noise(DiscreteLaplace(Fraction(5, 2))),
    "discrete Gaussian": lambda: _check_noise(DiscreteGaussian(4)),
    "noisy max": lambda: _check_selection(NoisyMax(1, 1)),
    "permute-and-flip": lambda: _check_selection(PermuteAndFlip(1, 1)),
    "exponential": lambda: _check_selection(ExponentialMechanism(1, 1)),
}
