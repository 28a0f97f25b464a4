# SPDX-License-Identifier: Apache-2.0
"""Measure the secure engine, its noise and its hidden trees with three processes, against MPyC in the same run.

The script asserts nothing. `veilwood papers run secure` measures accuracy.
Run `python benchmarks/secure_engine.py --demos MPYC/demos --large`, with a checkout of MPyC's repository for its demos.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread a party, so that CPU seconds mean something

import numpy as np
import secure_peers

from veilwood_papers.mpc import plain as fixed_point
from veilwood_papers.mpc.processes import ServerCost, run_three
from veilwood_secure.mpc.engine import Engine, Shared
from veilwood_secure.protocols import hidden_trees as hidden_tree
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.records import Domain, SharedRows

# rows, features, values
N_QUERIES = 1000
TITANIC, ADULT, TIC_TAC_TOE = (708, 6, 5), (26_120, 12, 7), (958, 9, 3)

INTRODUCTION = """
Three processes on one machine of {cores} cores, one thread each; load average {load:.1f} at the start. CPU seconds, MB
sent and rounds are of one server, the largest of the three, in one run (operations and noise after one to warm up);
wall seconds depend on what else runs. Rows are random, of the shape that is named. Trees include the drawing of their
noise, which needs no data and could be done before. Forests count in 64-bit words, everything else in 32-bit words.

Peers ran in the same run and add no noise: MPyC's arrays and a transcription of Algorithm 1 with statistical security
40; MPyC's demos with their default of 30, for a public tree that stops early, so they do another task than ours.
{note}
"""


def timed(engine: Engine, work: Callable[[], Any]) -> dict[str, float]:
    """Return what one piece of work takes this server."""
    rounds, sent = engine.stats.rounds, engine.stats.bytes_sent
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "MB": (engine.stats.bytes_sent - sent) / 1e6,
        "rounds": engine.stats.rounds - rounds,
    }


def secrets(engine: Engine, *shape: int) -> Shared:
    """Return uniform secret integers."""
    words = engine.random_words(shape, engine.ring.type)
    return Shared(words.parts, words.public_at)


def deal(engine: Engine, values: Any) -> Shared:
    """Return numbers that server 0 shares."""
    return engine.deal_sum(lambda server: values if server == 0 else np.zeros(values.shape, np.int64), values.shape)


def operations(engine: Engine) -> dict[str, dict[str, float]]:
    """What the engine does most, each once warmed up."""
    x, y = secrets(engine, 100_000), secrets(engine, 100_000)
    rows, columns = secrets(engine, 1000, 100), secrets(engine, 100, 10)
    mask, cells = secrets(engine, 343, 26_120), secrets(engine, 26_120, 84)
    work = {
        "100,000 products": lambda: engine.mul(x, y),
        "1000 x 100 times 100 x 10": lambda: engine.matmul(rows, columns),
        "343 x 26,120 times 26,120 x 84": lambda: engine.matmul(mask, cells),
        "10,000 comparisons": lambda: engine.is_negative(x[:10_000]),
        "100,000 comparisons": lambda: engine.is_negative(x),
    }
    for one in work.values():
        one()
    return {name: timed(engine, one) for name, one in work.items()}


def noises(engine: Engine) -> dict[str, dict[str, float]]:
    """Secret noise of epsilon 1 and 1/200."""
    one, small = Fraction(1), Fraction(200)
    work = {
        "1,000 Laplace, epsilon 1": lambda: noise.discrete_laplace(engine, one, (1000,)),
        "1,000 Laplace, epsilon 0.005": lambda: noise.discrete_laplace(engine, small, (1000,)),
        "51,200 Laplace, epsilon 1": lambda: noise.discrete_laplace(engine, one, (51_200,)),
        "51,200 Laplace, epsilon 1, dealt": lambda: noise.dealt_laplace(engine, one, (51_200,)),
    }
    for one_work in work.values():
        one_work()
    return {name: timed(engine, one_work) for name, one_work in work.items()}


def logarithms(engine: Engine) -> dict[str, float]:
    """The paper's noise by fixed-point logarithms, which is not private."""

    def draw() -> None:
        fixed_point.log_laplace_not_private(engine, Fraction(1), (1000,))

    draw()
    return timed(engine, draw)


def forest_counts(engine: Engine, law: str) -> dict[str, float]:
    """Counts of a random forest: the tables of ten owners added, noise, opened."""
    owners = [secrets(engine, 51_200) for _ in range(10)]
    draw = noise.dealt_laplace if law == "dealt" else noise.discrete_laplace

    def release() -> None:
        total = owners[0]
        for table in owners[1:]:
            total = total + table
        engine.open(total + draw(engine, Fraction(1), (51_200,)))

    release()
    return timed(engine, release)


def tree(engine: Engine, shape: tuple[int, int, int], depth: int) -> dict[str, dict[str, float]]:
    """A hidden tree with noise at every level, and predictions on it."""
    n, m, w = shape
    random = np.random.default_rng(0)
    domain = Domain((w,) * m, 2)
    one_hot, values = (
        (random.integers(0, w, (m, 1, rows)) == np.arange(w)[:, None]).astype(np.int64) for rows in (n, N_QUERIES)
    )
    classes = (random.integers(0, 2, n) == np.arange(2)[:, None]).astype(np.int64)
    records = SharedRows(deal(engine, one_hot), deal(engine, classes))
    recipe = hidden_tree.Recipe(domain, (Fraction(40),) * depth, Fraction(4))
    grown: list[hidden_tree.HiddenTree] = []

    def grow() -> None:
        grown.append(hidden_tree.grow_hidden_tree(engine, records, recipe, hidden_tree.draw_tree_noise(engine, recipe)))

    measured = {"training": timed(engine, grow)}
    queries = deal(engine, values)
    measured["prediction"] = timed(engine, lambda: hidden_tree.predict_queries(engine, grown, queries))
    return measured


def row(name: str, taken: dict[str, float], beside: str = "") -> str:
    return (
        f"| {name} | {taken['cpu']:.4f} | {taken['wall']:.3f} | {taken['MB']:.2f} | {taken['rounds']:.0f} | {beside} |"
    )


def slowest(outcomes: list[ServerCost[Any]], pick: Callable[[Any], dict[str, float]]) -> dict[str, float]:
    """Return for each measure the largest of the three servers."""
    taken = [pick(outcome.result) for outcome in outcomes]
    return {measure: max(one[measure] for one in taken) for measure in taken[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=Path, help="folder of MPyC's demos, with data/id3 in it")
    parser.add_argument("--note", default="", help="what to say about the demos that were run: their version, changes")
    parser.add_argument("--large", action="store_true", help="also train at the shape of Adult, depth 4 and 5")
    options = parser.parse_args()
    print("# Secure engine, noise and hidden trees\n")
    print(INTRODUCTION.format(cores=os.cpu_count(), load=os.getloadavg()[0], note=options.note))
    print("| what | CPU s | wall s | MB | rounds | beside |\n|---|---|---|---|---|---|")

    outcomes = run_three(operations)
    peers = {
        "100,000 products": (secure_peers.array_operations("mul", 10_000), 10),
        "1000 x 100 times 100 x 10": (secure_peers.array_operations("matmul", 1000), 1),
        "10,000 comparisons": (secure_peers.array_operations("compare", 1000), 10),
    }
    for name in outcomes[0].result:
        taken, beside = slowest(outcomes, lambda result, name=name: result[name]), ""
        if name in peers:
            peer, times = peers[name]
            beside = f"MPyC arrays {peer.cpu_s * times:.2f} s, {peer.bytes_sent * times / 1e6:.1f} MB"
            beside += f" (from 1/{times} of it)" if times > 1 else ""
            beside += f": {peer.cpu_s * times / taken['cpu']:.0f} times"
        print(row(name, taken, beside))

    outcomes = run_three(noises)
    for name in outcomes[0].result:
        print(row(name, slowest(outcomes, lambda result, name=name: result[name])))
    taken = slowest(run_three(logarithms, ring=np.uint64), dict)
    print(row("1,000 Laplace by Algorithm 12 (fixed-point logarithms), NOT PRIVATE", taken))
    for law in ("dealt", "sampled"):
        print(
            row(
                f"forest of 51,200 cells, 10 owners, noise {law}",
                slowest(run_three(forest_counts, law, ring=np.uint64), dict),
            )
        )

    report_tree("Titanic", TITANIC, 2, ("Algorithm 1, lists", secure_peers.literal_tree(*TITANIC, 2)))
    report_tree("Titanic", TITANIC, 4)
    if options.demos:
        for script in ("id3gini.py", "np_id3gini.py"):
            report_tree("tic-tac-toe", TIC_TAC_TOE, 4, (script, secure_peers.demo(options.demos, script, 5)))
    if options.large:
        for depth in (4, 5):
            report_tree("Adult", ADULT, depth)


def report_tree(name: str, shape: tuple[int, int, int], depth: int, beside: tuple[str, Any] | None = None) -> None:
    """Print the rows of one hidden tree."""
    n, m, w = shape
    outcomes = run_three(tree, shape, depth)
    taken = slowest(outcomes, lambda result: result["training"])
    memory = max(outcome.peak_memory for outcome in outcomes) / 1e9
    text = f"peak memory {memory:.2f} GB"
    if beside:
        label, peer = beside
        text += (
            f"; {label}: {peer.cpu_s:.2f} s CPU, {peer.wall_s:.1f} s wall, {peer.bytes_sent / 1e6:.1f} MB: "
            f"{peer.cpu_s / taken['cpu']:.0f} times the CPU, {peer.wall_s / taken['wall']:.0f} times the wall"
        )
    print(row(f"hidden tree, {name} ({n} x {m}, w = {w}), depth {depth}", taken, text))
    values = slowest(outcomes, lambda result: result["prediction"])
    print(row(f"{N_QUERIES:,} predictions, {name}, depth {depth}", values))


if __name__ == "__main__":
    main()
