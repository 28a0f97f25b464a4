# SPDX-License-Identifier: Apache-2.0
"""Figure 5 of the paper on MPC with decision trees: time and traffic of every protocol against depth, three processes.

    python benchmarks/secure_runtime.py [--only titanic] [--depths 2 3 4 5] [--out FILE.md]

Rows are random, of the shapes of the paper's training sets: what a protocol costs does not depend on them. The same
trees beside MPyC's own programs are in secure_engine.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread a party, so that CPU seconds mean something

import numpy as np

from veilwood.papers import id3
from veilwood.papers.exponential import exponential_class, exponential_feature
from veilwood.papers.mpyc_links import run_three
from veilwood.secure.mpc.engine import Engine
from veilwood.secure.mpc.shares import share
from veilwood.secure.protocols.hidden_tree import Recipe, draw_noise, grow, predict
from veilwood.secure.protocols.plans import level_epsilons
from veilwood.secure.protocols.records import Domain, Records, are_classes, are_one_hot, one_hot, one_hot_classes

SHAPES = {"titanic": (708, 6, 5), "heart": (237, 13, 5), "adult": (26_120, 12, 7)}
N_QUERIES = 1000
OURS = "hidden tree, noisy maxima (ours)"
VARIANTS = {
    OURS: np.uint32,
    "ODP+FMPC-ID3 as published (NOT PRIVATE)": np.uint32,
    "MPC-ID3, public, no noise (NOT PRIVATE)": np.uint32,
    "public tree, noisy maxima": np.uint32,
    "CDP+PMPC-ID3, exponential splits, Laplace leaves": np.uint64,
    "CDP+PMPC-ID3, exponential splits and leaves": np.uint64,
}
LARGE = ("adult", 5)  # at this size only protocols on 32-bit words are run


def spent(engine: Engine, since: dict[str, float] | None = None) -> dict[str, float]:
    now = {
        "cpu": time.process_time(), "wall": time.perf_counter(), "MB": engine.stats.bytes_sent / 1e6,
        "rounds": engine.stats.rounds, "products": engine.stats.products,
    }  # fmt: skip
    return now if since is None else {key: now[key] - since[key] for key in now}


def measure(engine: Engine, variant: str, shape: tuple[int, int, int], depth: int, x: Any, y: Any) -> dict[str, Any]:
    """What one server spends on checks, noise, training and predictions."""
    n, m, w = shape
    domain, epsilon = Domain((w,) * m, 2), Fraction(1)
    records = Records(engine.load(x), engine.load(y))
    start = spent(engine)
    fine = are_one_hot(engine, records.features, domain) and are_classes(engine, records.classes, domain)
    assert fine
    found: dict[str, Any] = {"checks": spent(engine, start)}
    share_of_level = epsilon / (depth + 1)
    start = spent(engine)
    if variant.startswith(("hidden", "ODP")):
        if variant == OURS:
            *splits, leaves = (1 / part for part in level_epsilons(epsilon, depth))
            recipe = Recipe(domain, tuple(splits), leaves)
        else:
            recipe = Recipe(domain, (None,) * depth, 1 / epsilon, leaf_law="laplace")
        noise = draw_noise(engine, recipe)
        found["noise"], start = spent(engine, start), spent(engine)
        tree = grow(engine, records, recipe, noise)
        found["training"], start = spent(engine, start), spent(engine)
        predict(engine, [tree], records.features[:, :, np.arange(N_QUERIES) % n])
        found["predictions"] = spent(engine, start)
        return found
    *_, leaf_epsilon = level_epsilons(epsilon, depth)
    select, label = {
        "MPC-ID3, public, no noise (NOT PRIVATE)": (id3.best_feature, id3.best_class),
        "public tree, noisy maxima": (id3.noisy_feature(1 / share_of_level), id3.noisy_class(1 / leaf_epsilon)),
        "CDP+PMPC-ID3, exponential splits, Laplace leaves": (
            exponential_feature(share_of_level), id3.class_of_noisy_counts(1 / share_of_level),
        ),
        "CDP+PMPC-ID3, exponential splits and leaves": (
            exponential_feature(share_of_level), exponential_class(share_of_level),
        ),
    }[variant]  # fmt: skip
    id3.grow_public(engine, records, domain, depth, select, label)
    found["training"] = spent(engine, start)
    return found


def measure_depths(
    engine: Engine, variant: str, shape: tuple[int, int, int], depths: list[int], x: Any, y: Any
) -> list[dict[str, Any]]:
    """Every depth in turn, from the smallest, each with the peak of memory so far."""
    found = []
    for depth in depths:
        found.append(measure(engine, variant, shape, depth, x, y))
        found[-1]["memory"] = {"GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}
    return found


def report(names: list[str], depths: list[int]) -> list[str]:
    lines = [
        "# Time and traffic of trees trained on shares",
        "",
        f"Three processes on one machine ({platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the start), one thread each, epsilon 1. CPU seconds, MB sent and rounds are of "
        "one server, the largest of three; wall seconds depend on what else runs. Noise of hidden trees needs no data; "
        "it is drawn first and counted in here. Memory is the peak of a process, of which Python with its libraries "
        "takes 0.2 GB. The last column divides the products that section 3.1.3 of the paper counts, "
        "w^(h-1) m (n + l) w u with l = 32, by those whose results are sent here.",
    ]
    for name in names:
        n, m, w = shape = SHAPES[name]
        rng = np.random.default_rng(0)
        domain = Domain((w,) * m, 2)
        features = one_hot(rng.integers(0, w, (n, m)), domain)
        classes = one_hot_classes(rng.integers(0, 2, n), domain)
        lines += ["", f"## {name}: {n:,} rows, {m} features, w = {w}", ""]
        lines += [
            "| protocol | depth | CPU s | of it noise | wall s | MB | rounds a level | memory GB | formula / ours |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        asked, checks = [], None
        for variant, ring in VARIANTS.items():
            small = [depth for depth in sorted(depths) if (name, depth) != LARGE or ring is np.uint32]
            shares = (share(features, ring=ring), share(classes, ring=ring))
            out = run_three(measure_depths, variant, shape, small, *shares, ring=ring)
            for place, depth in enumerate(small):
                results = [o.result[place] for o in out]
                most = {part: {k: max(r[part][k] for r in results) for k in results[0][part]} for part in results[0]}
                noise = most.get("noise", dict.fromkeys(most["training"], 0.0))
                total = {key: most["training"][key] + noise[key] for key in noise}
                formula = w ** (depth - 1) * m * (n + 32) * w * 2
                lines.append(
                    f"| {variant} | {depth} | {total['cpu']:.2f} | {noise['cpu']:.2f} | {total['wall']:.2f} | "
                    f"{total['MB']:.1f} | {total['rounds'] / depth:.0f} | {most['memory']['GB']:.2f} | "
                    f"{formula / total['products']:.1f} |"
                )
                print(lines[-1], flush=True)
                if variant == OURS:
                    checks = most["checks"]
                    asked.append((depth, most["predictions"]))
        lines += ["", f"{N_QUERIES:,} predictions on the hidden tree: " + "; ".join(
            f"depth {d}: {p['cpu']:.3f} s of CPU, {p['MB'] * 1000 / N_QUERIES:.2f} kB a query, {p['rounds']:.0f} rounds"
            for d, p in asked
        ) + "."]  # fmt: skip
        if checks:
            lines += ["", f"Checking that all rows are one-hot: {checks['cpu']:.3f} s of CPU, {checks['MB']:.1f} MB."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--depths", nargs="*", type=int, default=[2, 3, 4, 5])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = "\n".join([*report(options.only, options.depths), "", "Taken by `benchmarks/secure_runtime.py`."]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
