# SPDX-License-Identifier: Apache-2.0
"""Many neighbouring pairs under noninterference, on all cores: prints how many there were of what, and any told apart.

Every other pair has rows that do not fit, under ``invalid="drop"``; some have weights, are in SQLite, or are of forests
that choose their size. Needs numpy, pandas, pyarrow and the library; polars where it is there. Pair i of a seed is the
same on every computer that has it. To split a run over computers, give each its own seed.

    python testing/veilwood_testing/run_pairs.py --pairs 20000 --workers 16 --seed 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    if __name__ in ("__main__", "__mp_main__"):  # processes are parallel, so threads need not be
        os.environ[threads] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from veilwood.forests.adaptive.effects import Effects  # noqa: E402
from veilwood_audit.noninterference import Trace, compare_runs  # noqa: E402
from veilwood_testing.neighbour_pairs import TWO_CLASSES, discovery_of, drawn, pair_of  # noqa: E402

OF_A_SEED = 10**7  # pairs have numbers: so many belong to a seed
CHUNK = 20
DISCOVERED_EACH = 10  # beside every tenth pair of fits, one of discoveries
ABSTAINED = "class counts once more"

# What the adaptive loop can let out, by task. Each must be reached at delta 0. A delta is used where many rows are
# declared: their number is not asked then, nothing is abstained from, and no column of so small a table stands out.
OF_CLASSES = (
    "class counts", "strengths of columns", "column of tables", "histogram of column", "rows by group",
    "classes by cell", "weight of tables", "choice", "rows", "gradients", "interactions", ABSTAINED,
)  # fmt: skip
NOT_WITH_DELTA = {
    ABSTAINED, "column of tables", "rows by group", "classes by cell", "weight of tables", "number of rows",
    "sums of the target",
}  # fmt: skip
OF_FINE_CELLS = ("classes by column", "fine cells", "weight of fine cells")
OF_NUMBERS = (
    "number of rows", "sums of the target", "histogram of residuals before round", "histogram of column", "choice",
    "interactions",
)  # fmt: skip
ROUNDS_OF_NUMBERS = {"0": ("rows and residuals",), "> 0": ("rows", "gradients")}
PARTS = frozenset(
    f"{task}, delta {delta}: {part}"
    for task in ("classification", TWO_CLASSES, "regression")
    for delta in ("0", "> 0")
    for part in (OF_NUMBERS + ROUNDS_OF_NUMBERS[delta] if task == "regression" else OF_CLASSES + OF_FINE_CELLS)
    if delta == "0" or part not in {*NOT_WITH_DELTA, *OF_FINE_CELLS}
)


@dataclass
class Found:
    """Pairs by estimator and form, by kind, the parts of the loop they reached, and those that something told apart."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)  # a fit that ends with an error proves nothing
    apart: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.pairs += other.pairs
        self.kinds += other.kinds
        self.parts += other.parts
        self.failed += other.failed
        self.apart += other.apart


def numbered(pairs: int, seed: int) -> list[tuple[int, bool]]:
    """Number the pairs of a seed, and say which have rows that are dropped."""
    return [(seed * OF_A_SEED + i // 2, bool(i % 2)) for i in range(pairs)]


def parts_of(trace: Trace, task: str) -> set[str]:
    """Name the parts of the adaptive loop that a run has reached."""
    steps = [passage.step for passage in trace.events if passage.step is not None]
    delta = "> 0" if any(step.loss.delta > 0 for step in steps) else "0"
    found = {re.sub(r" ?\d+", "", step.name.split(": ")[-1]) for step in steps}
    visible = trace.visible["returned"]
    explained = visible.get("explain") if isinstance(visible, dict) else None
    if explained and isinstance(explained[0], Effects) and explained[0].interactions:
        found.add("interactions")
    return {f"{task}, delta {delta}: {part}" for part in found}


def run(pairs: Iterable[tuple[int, bool]], form: str | None = None) -> Found:
    """Run pairs one after the other."""
    found = Found()
    for number, drop in pairs:
        if number % DISCOVERED_EACH == 0 and form is None:
            found.add(discovered(number))
        kind, pair = ("plain", pair_of(number, drop=drop, form=form)) if form else drawn(number, drop=drop)
        found.kinds[kind] += 1
        trace, lines = compare_runs(pair.run, pair.one, pair.other, draw=pair.draw)
        found.pairs[pair.estimator, f"{pair.form}{' in parts' * pair.in_parts}{', dropping' * drop}"] += 1
        if not isinstance(visible := trace.visible["returned"], dict):
            found.failed.append(f"{pair}{', dropping' * drop}: {visible[-1].strip()}")
        if pair.estimator.startswith("PrivateForest"):
            found.parts.update(parts_of(trace, pair.task))
        if lines:
            found.apart.append(f"{pair}{', dropping' * drop}: {lines[:3]}")
    return found


def discovered(number: int) -> Found:
    """Run one pair of tables whose schema is discovered."""
    found, pair = Found(), discovery_of(number)
    trace, lines = compare_runs(pair.run, pair.one, pair.other, draw=pair.draw)
    found.pairs["discover", pair.form] += 1
    text = f"discovery {number}: {pair.params} from {pair.form}"
    visible = trace.visible["returned"]
    if not isinstance(visible, dict) and visible[0] != "SchemaError":  # that nothing stands out is an outcome
        found.failed.append(f"{text}: {visible[-1].strip()}")
    if lines:
        found.apart.append(f"{text}: {lines[:3]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Run neighbouring pairs under noninterference on all cores.")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pairs = numbered(options.pairs, options.seed)
    chunks = [pairs[i : i + CHUNK] for i in range(0, len(pairs), CHUNK)]
    found, began, result = Found(), time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for done, part in enumerate(pool.imap_unordered(run, chunks), 1):
            found.add(part)
            for line in part.apart:
                print(f"TOLD APART: {line}", flush=True)
            for line in part.failed:
                print(f"FAILED: {line}", flush=True)
            if done * 20 // len(chunks) > result:
                result = done * 20 // len(chunks)
                print(f"{done / len(chunks):.0%} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for title, place in (("estimator", 0), ("input form", 1)):
        counts: Counter[str] = Counter()
        for names, count in found.pairs.items():
            counts[names[place]] += count
        print(f"\n{'pairs':>7}  {title}")
        print("\n".join(f"{count:>7}  {name}" for name, count in sorted(counts.items())))
    print(f"\n{'pairs':>7}  kind")
    print("\n".join(f"{count:>7}  {name}" for name, count in sorted(found.kinds.items())))
    print(f"\n{'pairs':>7}  part of the adaptive loop")
    print("\n".join(f"{found.parts[part]:>7}  {part}" for part in sorted(PARTS)))
    seconds, failed, apart = time.monotonic() - began, len(found.failed), len(found.apart)
    print(f"\n{found.pairs.total()} pairs of seed {options.seed}, {seconds:.0f} s: {failed} failed, {apart} told apart")
    return 1 if found.apart or found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
