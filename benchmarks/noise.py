# SPDX-License-Identifier: Apache-2.0
"""Measure draws per second of the exact samplers against OpenDP and NumPy's floating-point noise, in one run.

The script asserts nothing. NumPy's noise is a reference for speed only: it is not private.
Run `python benchmarks/noise.py --json noise.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip

SCALES = (1, 10, 100, 1000)


def rate(draw: Callable[[int], object], n: int, repeats: int) -> float:
    """Return the best draws per second of CPU time over `repeats` runs, tables built beforehand."""
    draw(10)
    best = 0.0
    for _ in range(repeats):
        start = time.process_time()
        draw(n)
        best = max(best, n / max(time.process_time() - start, 1e-9))
    return best


def opendp_sampler(kind: str, scale: float) -> Callable[[int], object]:
    """Return a function that draws integer noise of a scale, or standard deviation, with OpenDP."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "laplace":
        draw = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), float(scale))
    else:
        draw = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), float(scale))
    return lambda n: draw(np.zeros(n, dtype=np.int64))


def measure(n: int, repeats: int, with_opendp: bool) -> list[dict[str, float | str]]:
    rng = np.random.default_rng(0)
    rows: list[dict[str, float | str]] = []
    slow = max(n // 100, 1)  # OpenDP is about a hundred times slower
    for scale in SCALES:
        laplace, sigma_squared = DiscreteLaplace(scale), Fraction(scale) ** 2
        gaussian = DiscreteGaussian(sigma_squared)
        row: dict[str, float | str] = {
            "scale": scale,
            "laplace": rate(laplace.sample, n, repeats),
            "numpy laplace": rate(lambda m, b=scale: rng.laplace(scale=b, size=m), n, repeats),
            "gaussian": rate(gaussian.sample, n, repeats),
            "numpy normal": rate(lambda m, b=scale: rng.normal(scale=b, size=m), n, repeats),
        }
        if with_opendp:
            row["opendp laplace"] = rate(opendp_sampler("laplace", scale), slow, repeats)
            row["opendp gaussian"] = rate(opendp_sampler("gaussian", scale), slow, repeats)
        rows.append(row)
    return rows


def measure_selection(rows: int, candidates: int, repeats: int) -> dict[str, float]:
    scores = np.random.default_rng(0).integers(0, 20, size=(rows, candidates))
    choices = [NoisyMax(1, 1), PermuteAndFlip(1, 1), ExponentialMechanism(1, 1)]
    return {type(choice).__name__: rate(lambda m, c=choice: c.select(scores[:m]), rows, repeats) for choice in choices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2_000_000, help="draws of each fast sampler")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    try:
        import opendp  # noqa: F401

        with_opendp = True
    except ImportError:
        with_opendp = False
    rows = measure(options.draws, options.repeats, with_opendp)
    selection = measure_selection(100_000, 4, options.repeats)

    print("Million draws per second of CPU time; in brackets, times as fast as the same draw by OpenDP and by numpy.\n")
    print(f"{'scale':>6} {'Laplace':>24} {'Gaussian':>24}")
    for row in rows:
        cells = []
        for ours, other, floats in (
            ("laplace", "opendp laplace", "numpy laplace"),
            ("gaussian", "opendp gaussian", "numpy normal"),
        ):
            own = float(row[ours])
            against = f"x{own / float(row[other]):.0f}" if other in row else "not installed"
            cells.append(f"{own / 1e6:.1f} ({against}, x{own / float(row[floats]):.2f})")
        print(f"{row['scale']:>6} {cells[0]:>24} {cells[1]:>24}")
    print("\nSelections per second of CPU time, four candidates:")
    for name, speed in selection.items():
        print(f"  {name:<22} {speed / 1e6:.2f} million")
    if options.json:
        options.json.write_text(json.dumps({"samplers": rows, "selection": selection}, indent=2) + "\n")
        print(f"\nwritten to {options.json}")


if __name__ == "__main__":
    main()
