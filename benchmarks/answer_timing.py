# SPDX-License-Identifier: Apache-2.0
"""What the time of a private answer reveals, over loopback: the number of rows, and the noise that was drawn.

Compares a service that sends answers when they are ready with one that holds them back (proofs/service.md). For each
it prints how well a threshold on the time of one answer tells a table from one with twice as many rows, and the rank
correlation of the time with the size of the noise.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.stats import spearmanr

from veilwood.privacy.noise import DiscreteLaplace
from veilwood_service import private_queries
from veilwood_service.settings import Limits
from veilwood_testing.running_service import CAR, TABLE, Running, listening, serving

PREDICTOR: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "epsilon": 0.01,
    "parameters": {"n_estimators": 16, "max_depth": 4, "mechanism": "laplace"},
}


@contextmanager
def recorded_noise(sizes: list[float]) -> Iterator[None]:
    """Record the size of the noise of every draw: the attacker's best case, in which results are known."""
    perturb = DiscreteLaplace.perturb

    def recorded(self: DiscreteLaplace, exact: Any) -> Any:
        noisy = perturb(self, exact)
        sizes.append(float(np.abs(noisy - exact).sum()))
        return noisy

    DiscreteLaplace.perturb = recorded  # type: ignore[method-assign]
    try:
        yield
    finally:
        DiscreteLaplace.perturb = perturb  # type: ignore[method-assign]


def answer_times(running: Running, address: str, datasets: list[str], n_answers: int) -> list[list[float]]:
    """Return the milliseconds of answers to batches of one row, for each data set. They take turns, as load changes."""
    models = [running.run(running.signed(name, **PREDICTOR))["id"] for name in datasets]
    rows, times = CAR.X.to_dict("records"), [list[float]() for _ in models]
    headers = {"Authorization": f"Bearer {running.tokens['analyst']}"}
    with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        for model in models:
            client.post(f"/v1/models/{model}/quote", json={"rows": rows[:1]})
        for number in range(n_answers):
            for model, of_model in zip(models, times, strict=True):
                start = time.perf_counter()
                found = client.post(f"/v1/models/{model}/answers", json={"rows": rows[number : number + 1]})
                of_model.append(1000 * (time.perf_counter() - start))
                assert found.status_code == 200, found.text
    return times


def advantage(first: list[float], second: list[float]) -> float:
    """Return the best probability of telling one time of each list apart by a threshold, less one half."""
    both = np.sort(first + second)
    best = max(abs(np.mean(np.array(first) <= t) - np.mean(np.array(second) <= t)) for t in both)
    return float(best) / 2


def main() -> None:
    """Print a table of both services."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--copies", type=int, default=60, help="times that the 1,728 rows of the smaller table repeat")
    options = parser.parse_args()
    once = TABLE.to_csv(index=False).encode()
    body = once.split(b"\n", 1)[1]
    print("| answers are sent | rows | median, ms | 99 %, ms | advantage on rows | correlation with noise |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, limit in (("when ready", None), ("on schedule", Limits().answer_milliseconds)):
        hold_back = private_queries._hold_back
        private_queries._hold_back = (lambda _: nullcontext()) if limit is None else hold_back  # type: ignore[assignment]
        sizes: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            limits = Limits(answer_milliseconds=limit or 1)
            with serving(Path(folder), limits=limits) as running, listening(running) as address:
                for factor in (1, 2):
                    table = once + body * (factor * options.copies - 1)
                    running.add_cars(f"cars{factor}", epsilon=1000, table=table)
                with recorded_noise(sizes):
                    times = answer_times(running, address, ["cars1", "cars2"], options.answers)
        private_queries._hold_back = hold_back
        assert len(sizes) == 2 * options.answers
        noise = spearmanr(times[0], sizes[::2]).correlation
        gain = advantage(*times)
        for factor, found in enumerate(times, start=1):
            rows = 1728 * options.copies * factor
            high = sorted(found)[int(0.99 * len(found))]
            print(f"| {name} | {rows:,} | {statistics.median(found):.2f} | {high:.2f} | {gain:.2f} | {noise:+.2f} |")


if __name__ == "__main__":
    main()
