# SPDX-License-Identifier: Apache-2.0
"""Measure what checked servers cost, and change their messages to see whether a wrong result is accepted.

python benchmarks/secure_checked.py cost
python benchmarks/secure_checked.py memory
python benchmarks/secure_checked.py lies [--only hidden-tree ...] [--every 1]
python benchmarks/secure_checked.py write

Each call keeps its results in results/secure_checked.json; ``write`` makes results/secure_checked.md. Three servers
are threads of one process; CPU seconds are those of one server's thread. `PYTHONPATH=testing` is needed for lies.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread per server, so that CPU seconds mean something

import numpy as np

from veilwood_secure.mpc.checked import CheckedEngine
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.protocols import hidden_trees, records
from veilwood_secure.protocols.records import Domain, SharedRows
from veilwood_secure.roles.program import PROTOCOLS

SHAPES: Final = {"Titanic (708 x 6, w = 5)": (708, 6, 5), "Adult (26,120 x 12, w = 7)": (26_120, 12, 7)}
DEPTH: Final = 4
N_QUERIES: Final = 1000
REPEATS: Final = 3
MEASURES: Final = ("cpu", "MB", "rounds")

RESULTS: Final = Path(__file__).parent / "results" / "secure_checked.json"
NOT_PRIVATE: Final = ("mpc-id3", "odp-id3")  # of the reproductions
CHANGES: Final = {
    "flip": "one bit",
    "random": "random bytes, same length",
    "zeros": "zeros, same length",
    "replay": "an older message of the same length",
    "truncate": "last byte missing",
    "drop": "not sent",
    "own number": "own number changed before it is used and sent",
}
DROPS_PER_PROTOCOL: Final = 6
"""A message that is not sent is waited for, so only a few messages of each protocol are dropped."""

COST: Final = """# Checked servers: cost and lies

Made by `benchmarks/secure_checked.py`. What is claimed of the checked mode is in
[proofs/secure-checked.md](../../proofs/secure-checked.md).

## Cost

A hidden tree of depth {depth} with noise at every level, random rows of the shape that is named. Three servers are
threads of one process on a machine of {cores} cores. CPU seconds, MB sent and rounds are of one server, the largest of
the three; the smallest CPU time of {repeats} runs. For comparison, MP-SPDZ publishes 2.4 times (one thread) and 3.4
times (32 threads) the time of its semi-honest replicated ring for its malicious one, on ResNet-50.

| what | honest: CPU s | MB | rounds | checked: CPU s | MB | rounds | CPU ratio | MB ratio |
|---|---|---|---|---|---|---|---|---|
{rows}

Memory: checking rows, training and predicting on the shape of Adult add {honest:.0f} MB (honest) or {checked:.0f} MB
(checked) to the peak of a process, for one server of three.
"""
LIES: Final = """
## Lies

Each of the three servers in turn changes one of its messages, or one of its own numbers before it uses and sends it.
Rows are checked, a model is trained and, where it stays hidden, queries are answered, on 16 rows. Every message is
changed in every way, with two exceptions: of {thinned} not every message is changed, and few messages
are not sent, since each of these is waited for. Runs in which the change changed nothing are left out. `hang` counts
runs of more than a minute.

| protocol | messages changed | aborted | no effect on the result | wrong result accepted | hang |
|---|---|---|---|---|---|
{by_protocol}

| change | messages changed | aborted | no effect on the result | wrong result accepted |
|---|---|---|---|---|
{by_change}
"""


def timed(engine: Engine, work: Callable[[], Any]) -> dict[str, float]:
    """Return what one piece of work takes this server, up to the check of all of it."""
    rounds, sent, cpu = engine.stats.rounds, engine.stats.bytes_sent, time.thread_time()
    work()
    if isinstance(engine, CheckedEngine):
        engine.verify()
    return {
        "cpu": time.thread_time() - cpu,
        "MB": (engine.stats.bytes_sent - sent) / 1e6,
        "rounds": engine.stats.rounds - rounds,
    }


def measure_tree(engine: Engine, shape: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """Check rows, train, predict."""
    n, m, w = shape
    random = np.random.default_rng(0)
    domain = Domain((w,) * m, 2)
    one_hot, request = (
        (random.integers(0, w, (m, 1, rows)) == np.arange(w)[:, None]).astype(np.int64) for rows in (n, N_QUERIES)
    )
    classes = (random.integers(0, 2, n) == np.arange(2)[:, None]).astype(np.int64)
    table = SharedRows(deal(engine, one_hot), deal(engine, classes))
    queries = deal(engine, request)
    recipe = hidden_trees.Recipe(domain, (Fraction(40),) * DEPTH, Fraction(4))
    grown: list[hidden_trees.HiddenTree] = []

    def check() -> None:
        assert records.are_one_hot(engine, table.features, domain)
        assert records.are_valid_classes(engine, table.classes, domain)

    def grow() -> None:
        drawn = hidden_trees.draw_tree_noise(engine, recipe)
        grown.append(hidden_trees.grow_hidden_tree(engine, table, recipe, drawn))

    return {
        "rows checked": timed(engine, check),
        f"training, depth {DEPTH}": timed(engine, grow),
        f"{N_QUERIES:,} predictions": timed(engine, lambda: hidden_trees.predict_queries(engine, grown, queries)),
    }


def deal(engine: Engine, values: Any) -> Any:
    """Return numbers that server 0 shares."""
    return engine.deal_sum(lambda server: values if server == 0 else np.zeros(values.shape, np.int64), values.shape)


def measure(make: Callable[[Links], Engine], shape: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """Return for each piece of work the largest cost of the three servers, and its smallest CPU time."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(REPEATS):
        costs = run_in_threads(lambda links: measure_tree(make(links), shape))
        for what in costs[0]:
            largest = {name: max(cost[what][name] for cost in costs) for name in MEASURES}
            if what not in best or largest["cpu"] < best[what]["cpu"]:
                best[what] = largest
    return best


def measure_costs() -> list[dict[str, Any]]:
    """Return one row per piece of work: its costs in both modes."""
    rows = []
    for name, shape in SHAPES.items():
        honest, checked = measure(ReplicatedEngine, shape), measure(CheckedEngine, shape)
        rows += [{"what": f"{name}: {what}", "honest": honest[what], "checked": checked[what]} for what in honest]
    return rows


def measure_peaks() -> dict[str, float]:
    """Return the MB that training on the shape of Adult adds to the peak of a process, per server and mode."""
    found = {}
    for mode in ("honest", "checked"):
        command = [sys.executable, __file__, "peak", "--mode", mode]
        found[mode] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def print_peak(mode: str) -> None:
    """Print the MB per server that one run on the shape of Adult adds to the peak of this process."""
    make = CheckedEngine if mode == "checked" else ReplicatedEngine
    run_in_threads(lambda links: measure_tree(make(links), (100, 12, 7)))  # loads everything
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_in_threads(lambda links: measure_tree(make(links), SHAPES["Adult (26,120 x 12, w = 7)"]))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 / 3)


def count_lies(protocol: str, every: int) -> dict[str, Any]:
    """Return how runs with a changed message ended, by change and outcome."""
    from veilwood_testing import lies

    ReplicatedEngine.deal_sum = lies.deal_zeros  # type: ignore[method-assign, assignment]
    task = lies.protocol_task(protocol)
    program, make = lies.protocol_program(task), lies.make_checked_engine(task)
    n_messages = lies.count_messages(program, make)
    began = time.process_time()
    kept = [change for change in CHANGES if change != "drop"]
    found = lies.try_lies(program, make, kept, every=every)
    found += lies.try_lies(
        program, make, ("drop",), every=max(1, 3 * n_messages[0] // DROPS_PER_PROTOCOL), timeout_s=1.0
    )
    counts = [[*key, count] for key, count in sorted(found.items())]
    return {"every": every, "messages": n_messages, "cpu": time.process_time() - began, "counts": counts}


def write_page(results: dict[str, Any]) -> None:
    """Make the page of results."""
    lines = []
    for row in results["cost"]:
        plain, safe = row["honest"], row["checked"]
        numbers = " | ".join(f"{one['cpu']:.3f} | {one['MB']:.2f} | {one['rounds']:.0f}" for one in (plain, safe))
        ratios = f"{safe['cpu'] / plain['cpu']:.1f} | {safe['MB'] / plain['MB']:.1f}"
        lines.append(f"| {row['what']} | {numbers} | {ratios} |")
    text = COST.format(depth=DEPTH, cores=os.cpu_count(), repeats=REPEATS, rows="\n".join(lines), **results["memory"])
    every = [
        (protocol, *count) for protocol, found in results["lies"].items() for count in found["counts"]
    ]  # protocol, change, outcome, count
    outcomes = ("aborted", "harmless", "WRONG", "hang")

    def format_row(title: str, place: int | None, key: str, columns: tuple[str, ...]) -> str:
        by = {how: sum(row[3] for row in every if place is None or row[place] == key) for how in ("all",)}
        by |= {
            how: sum(row[3] for row in every if row[2] == how and (place is None or row[place] == key))
            for how in (*outcomes, "unchanged")
        }
        return f"| {title} | {by['all'] - by['unchanged']:,} | {' | '.join(f'{by[how]:,}' for how in columns)} |"

    by_protocol = [format_row(protocol, 0, protocol, outcomes) for protocol in results["lies"]]
    by_protocol.append(format_row("all", None, "", outcomes))
    by_change = [format_row(title, 1, change, outcomes[:3]) for change, title in CHANGES.items()]
    text += LIES.format(
        thinned=" and ".join(
            f"`{protocol}` (one of {found['every']})"
            for protocol, found in results["lies"].items()
            if found["every"] > 1
        ),
        by_protocol="\n".join(by_protocol), by_change="\n".join(by_change),
    )  # fmt: skip
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")


def main() -> None:
    """Measure what is asked for, keep it, and write the page once all parts are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "memory", "peak", "lies", "write"))
    parser.add_argument("--mode", default="checked", help="of peak: honest or checked")
    parser.add_argument("--only", nargs="+", default=[*PROTOCOLS, *NOT_PRIVATE])
    parser.add_argument("--every", type=int, default=1, help="change one of so many messages")
    options = parser.parse_args()
    if options.what == "peak":
        return print_peak(options.mode)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.what == "cost":
        results["cost"] = measure_costs()
    elif options.what == "memory":
        results["memory"] = measure_peaks()
    elif options.what == "lies":
        for protocol in options.only:
            found = count_lies(protocol, options.every)
            print(protocol, found, flush=True)
            results.setdefault("lies", {})[protocol] = found
    RESULTS.write_text(json.dumps(results, indent=0) + "\n", encoding="utf-8")
    if {"cost", "memory", "lies"} <= set(results):
        write_page(results)
    return None


if __name__ == "__main__":
    main()
