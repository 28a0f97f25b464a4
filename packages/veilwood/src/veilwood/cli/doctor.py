# SPDX-License-Identifier: Apache-2.0
"""``veilwood doctor``: checks of an installation. Reads no private rows."""

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
from veilwood.errors import FileError, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Geometric
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.siblings import GPU

CheckState = Literal["well", "missing", "broken"]
STATE_MARKS = {"well": "ok", "missing": "--", "broken": "BROKEN"}
N_DRAWS = 100_000
# In standard deviations. A correct sampler fails one check with a probability below 1e-9; a sampler with half the
# scale deviates by thousands.
MAX_DEVIATIONS = 6.2
EXIT_DAMAGED = FileError.exit_code


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    what: str
    state: CheckState
    detail: str


def run_checks(ledgers: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Run all checks, one after the other.

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
        list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Ledger to verify; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this installation.

    Checks versions, extras, cores, GPU, entropy source, samplers and ledgers. Draws from each sampler and compares the
    sample with its exact distribution, which takes seconds. You can install a missing component. Do not use a broken
    component: if there is one, the command exits with code 4.

    \b
    Example:
      veilwood doctor --ledger visits.db
    """
    findings = list(run_checks(tuple(ledger or ())))
    is_whole = all(finding.state != "broken" for finding in findings)
    width = max(len(finding.what) for finding in findings)
    lines = [f"{STATE_MARKS[finding.state]:6}  {finding.what:{width}}  {finding.detail}" for finding in findings]
    end = "All checks passed." if is_whole else "A check failed: release nothing private until it is repaired."
    data = {"whole": is_whole, "findings": [asdict(finding) for finding in findings]}
    print_result(as_json, data, "\n".join([*lines, end]))
    if not is_whole:
        raise typer.Exit(EXIT_DAMAGED)


def _run_check(name: str, failure_state: CheckState, check: Callable[[], str]) -> Finding:
    """Run a check and return its finding, with the error if it fails."""
    try:
        return Finding(name, "well", check())
    except VeilwoodError as error:
        return Finding(name, failure_state, str(error))
    except Exception as error:  # any failure of a check is a finding, expected or not
        return Finding(name, failure_state, f"{type(error).__name__}: {error}")


# -- versions and extras -------------------------------------------------------------------------------------


_BY_PLATFORM = ";"


def _check_packages() -> Iterator[Finding]:
    """Yield the versions of required packages and the state of each extra, as the distribution declares them."""
    extras = _extra_requirements("veilwood")
    for name in extras.pop("", []):
        version = _installed_version(name)
        yield Finding(name, "broken" if version is None else "well", version or "is required and not installed")
    for name in extras.pop(_BY_PLATFORM, []):
        version = _installed_version(name)
        text = "not installed: NumPy gives the same results but is several times slower"
        yield Finding(name, "missing" if version is None else "well", version or text)
    for extra, names in sorted(extras.items()):
        if extra in ("dev", "docs"):
            continue
        absent = [name for name in dict.fromkeys(names) if _installed_version(name) is None]
        text = f"without {', '.join(absent)}. Hint: run pip install 'veilwood[{extra}]'." if absent else "installed"
        yield Finding(f"extra [{extra}]", "missing" if absent else "well", text)


def _extra_requirements(distribution: str) -> dict[str, list[str]]:
    """Return the packages that each extra of a distribution requires, including those of sibling packages.

    The key "" lists the packages required everywhere; ``_BY_PLATFORM`` lists those required where wheels exist.
    """
    extras: dict[str, list[str]] = {}
    for line in metadata.requires(distribution) or []:
        package = re.match(r"([\w.-]+)(?:\[([\w-]+)\])?", line)
        if package is None or package[1] == "veilwood":
            continue
        found = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        names = extras.setdefault(found[1] if found else _BY_PLATFORM if ";" in line else "", [])
        names.append(package[1])
        if package[1].startswith("veilwood-") and _installed_version(package[1]) is not None:
            names += _extra_requirements(package[1]).get(package[2] or "", [])
    return extras


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# -- the machine ---------------------------------------------------------------------------------------------


def _check_gpu() -> str:
    with GPU.load().use():
        return "can be used: with vw.gpu.use(): ..."


def _check_entropy() -> str:
    """Draw bits, and fail if the source is seeded, repeats itself or is biased."""
    entropy.require_entropy()
    first, second = entropy.random_integers(N_DRAWS // 64), entropy.random_integers(N_DRAWS // 64)
    _require_healthy(not entropy.is_seeded(), "is a seeded test stream, which protects no one")
    _require_healthy(not np.array_equal(first, second), "repeats itself")
    ones = int(np.unpackbits(np.concatenate([first, second]).view(np.uint8)).sum())
    bits = 64 * (len(first) + len(second))
    _require_healthy(abs(ones - bits / 2) < MAX_DEVIATIONS * (bits / 4) ** 0.5, f"has {ones} ones among {bits} bits")
    return "of the operating system, available"


def _check_ledger(place: str) -> str:
    ledger = open_existing_ledger(place)
    head = ledger.verify()
    n_reserved = sum(entry.state == "reserved" for entry in ledger.entries())
    note = f"; {n_reserved} reserved and not settled (veilwood ledger resolve)" if n_reserved else ""
    return f"intact, {describe_remaining(ledger)}, last hash {head}{note}"


# -- samplers ------------------------------------------------------------------------------------------------


def _check_noise(mechanism: Any) -> str:
    """Draw from a mechanism and compare the frequency of each small value with its exact probability."""
    drawn = mechanism.sample(N_DRAWS)
    values = np.arange(-8, 9)
    _compare_with_exact((drawn[:, None] == values).sum(axis=0), mechanism.pmf(values))
    far = 1 - float(mechanism.pmf(values).sum())
    _compare_with_exact(np.array([np.abs(drawn) > 8]).sum(axis=1), np.array([far]))
    return f"{N_DRAWS:,} draws follow the exact distribution"


def _check_selection(mechanism: Any) -> str:
    """Select among three candidates many times and compare the frequencies with the exact probabilities."""
    scores = np.array([0, 1, 2])
    chosen = mechanism.select(np.tile(scores, (N_DRAWS, 1)))
    _compare_with_exact(np.bincount(chosen, minlength=3), mechanism.probabilities(scores))
    return f"{N_DRAWS:,} selections follow the exact distribution"


def _compare_with_exact(counts: Any, probabilities: Any) -> None:
    expected = N_DRAWS * np.asarray(probabilities, float)
    std = np.sqrt(np.maximum(expected * (1 - expected / N_DRAWS), 1.0))
    deviation = float((np.abs(np.asarray(counts) - expected) / std).max())
    _require_healthy(deviation < MAX_DEVIATIONS, f"is {deviation:.1f} standard deviations from its distribution")


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
