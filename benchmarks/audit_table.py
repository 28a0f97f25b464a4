# SPDX-License-Identifier: Apache-2.0
"""Attack every estimator and write the tables of targets, repetitions and power of the attacks into a results page.

Run: python benchmarks/audit_table.py [--only canaries replay pairs] [--pairs 300] [--page FILE]

The replayed fits and the neighbouring pairs are those of the tests, with fresh noise from the operating system.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from veilwood import estimators, plots
from veilwood_audit import attacks
from veilwood_audit import model_files as reports
from veilwood_audit.attacks import ReplayResult
from veilwood_audit.noninterference import find_interference

ROOT = Path(__file__).parents[1]
PARTS = ("canaries", "replay", "pairs")
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in estimators.__all__),
    ("RandomTreesClassifier", {"n_estimators": 3}),
    ("RandomTreesClassifier", {"n_estimators": 2, "trees": "disjoint"}),
    ("MatrixForestPredictor", {"mode": "subsample", "voting": "hard"}),
    ("RandomTreesClassifier", {"delta": 1e-12}),
]


def canaries(epsilon: float) -> str:
    """Every estimator on canaries, beside its twin; draws the picture too."""
    found = [
        attacks.attack_estimator(attacks.canary_estimator(getattr(estimators, name), epsilon, params))
        for name, params in SETTINGS
    ]
    rows = [
        (
            f"{one.estimator}\n{one.setting}{', Gaussian' if one.delta else ''}",
            one.epsilon,
            one.audited.epsilon_lower_bound,
            one.control.epsilon_lower_bound,
        )
        for one in found
    ]
    plots.claimed_and_attacked(rows).savefig(ROOT / "docs" / "audit.png", dpi=100)
    return f"{reports.attack_table(found)}\n\nEach bound holds with probability {100 * found[0].confidence:.7f} %."


def replay() -> str:
    """Whole fits by likelihood ratio, and fine cells at their budgets, beside twins with half the noise."""
    import test_replayed_fits as tests

    found: list[tuple[str, float, ReplayResult, ReplayResult]] = []
    for name, attack in tests.FITS.items():
        sound = attack()
        with pytest.MonkeyPatch.context() as patch:
            tests.halve_noise(patch)
            found.append((name, 1.0, sound, attack()))
    for epsilon in (6.0, 20.0):
        with pytest.MonkeyPatch.context() as patch:
            planned, sound = tests.cells_attack(epsilon, patch)
            tests.halve_noise(patch)
            _, control = tests.cells_attack(epsilon, patch)
        found.append((f"fine cells of PrivateForestClassifier at epsilon {epsilon:g}", planned, sound, control))
    return reports.replay_table(found)


def pairs(count: int) -> str:
    """Neighbouring pairs under noninterference, by estimator, and the planted leaks that the tests catch."""
    from veilwood_testing.neighbour_pairs import SETTINGS as FITTED
    from veilwood_testing.neighbour_pairs import pair_of

    tried: Counter[str] = Counter()
    result: Counter[str] = Counter()
    for number in range(count):
        for drop in (False, True):
            pair = pair_of(number, drop=drop)
            tried[pair.estimator] += 1
            result[pair.estimator] += bool(find_interference(pair.run, pair.one, pair.other, draw=pair.draw))
    files = [
        str(ROOT / "packages" / package / "test_noninterference.py")
        for package in ("veilwood/tests/guarantees", "veilwood-audit/tests")
    ]
    planted = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", "caught", *files],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    marks = "".join(re.findall(r"^[.F]+(?= |$)", planted.stdout, flags=re.M))
    lines = ["| estimator | pairs of neighbours | told apart |", "|---|---|---|"]
    lines += [f"| {name} | {tried[name]:,} | {result[name]} |" for name in dict(FITTED)]
    lines += [f"| all | {sum(tried.values()):,} | {sum(result.values())} |"]
    return "\n".join(lines) + f"\n\nPlanted leaks caught: {marks.count('.')} of {len(marks)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--epsilon", type=float, default=1.0, help="for canaries")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks" / "results" / "attacks.md")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "testing"), str(ROOT / "packages" / "veilwood" / "tests" / "guarantees")]
    warnings.simplefilter("ignore")
    for part in options.only:
        started = time.process_time()
        if part == "canaries":
            table = canaries(options.epsilon)
        else:
            table = replay() if part == "replay" else pairs(options.pairs)
        start, end = f"<!-- {part}: benchmarks/audit_table.py -->", f"<!-- end of {part} -->"
        text = options.page.read_text(encoding="utf-8")
        place = f"{re.escape(start)}.*?{re.escape(end)}"
        fresh, count = re.subn(place, lambda _, t=table, s=start, e=end: f"{s}\n\n{t}\n\n{e}", text, flags=re.S)
        assert count == 1, f"{options.page} has no place for {part}"
        options.page.write_text(fresh, encoding="utf-8")
        print(f"{table}\n{time.process_time() - started:.0f} s of CPU; wrote {options.page}")


if __name__ == "__main__":
    main()
