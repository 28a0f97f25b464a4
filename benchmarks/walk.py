# SPDX-License-Identifier: Apache-2.0
"""Follow fits, a prediction, loading and an evaluation: which modules they pass, and how often they change module.

A reader who follows a fit turns a page at each change, so fewer changes are better. A call into another module of the
package is one change and the return from it another; calls to and through other libraries do not count. Noise is
random, and so is the number of draws: the script reports the median of several walks. It uses only public names, to
measure any version of the package: `PYTHONPATH=CHECKOUT/packages/veilwood/src python benchmarks/walk.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import veilwood as vw

ROOT = Path(vw.__file__).parent
EPSILON = 1.0
WALKS = (
    "fit of one row, random trees", "fit of one row, PrivateForest by rounds", "fit with a ledger, PrivateForest",
    "fit with a ledger, random trees of automatic size", "prediction of one row", "loading a model", "evaluation",
)  # fmt: skip


@dataclass
class Walk:
    """What one call passed through."""

    modules: set[str] = field(default_factory=set)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # from one module to another

    @property
    def changes(self) -> int:
        """Changes of module: every call to another module and every return from it."""
        return 2 * self.calls.total()


def module_of(code: CodeType, known: dict[CodeType, str | None]) -> str | None:
    """Return the module of the package that holds some code; None for other libraries."""
    if code not in known:
        path = Path(code.co_filename)
        inside = path.is_relative_to(ROOT)
        known[code] = ".".join(path.relative_to(ROOT).with_suffix("").parts) if inside else None
    return known[code]


def follow(work: Callable[[], object]) -> Walk:
    """Run some work and write down its walk through the package."""
    walk, known = Walk(), dict[CodeType, str | None]()
    stack: list[str | None] = [None]  # where the work is: the innermost module of the package, for each open call

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            here, there = stack[-1], module_of(frame.f_code, known)
            if there is not None:
                walk.modules.add(there)
                if here is not None and here != there:
                    walk.calls[here, there] += 1
            stack.append(there or here)
        elif event == "return" and len(stack) > 1:
            stack.pop()

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return walk


def prepare_walks(folder: Path) -> dict[str, Callable[[], object]]:
    """Write the files that the walks read, and return the walks by name."""
    scale, car = vw.datasets.balance_scale(), vw.datasets.car()
    row, rows, saved, ledger = (str(folder / name) for name in ("row.csv", "rows.csv", "saved.veilwood", "spends.db"))
    scale.X[:1].assign(**{scale.schema.target.name: scale.y[:1]}).to_csv(row, index=False)
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(rows, index=False)

    def forest(**parameters: Any) -> vw.PrivateForestClassifier:
        return vw.PrivateForestClassifier(car.schema, epsilon=EPSILON, random_state=0, **parameters)

    model = forest().fit(rows)
    vw.save(model, saved)
    works = (
        lambda: vw.RandomTreesClassifier(scale.schema, random_state=0, n_estimators=20, max_depth=5).fit(row),
        lambda: vw.PrivateForestClassifier(scale.schema, random_state=0, n_rows=30_000).fit(row),
        lambda: forest(ledger=ledger).fit(rows),
        lambda: vw.RandomTreesClassifier(car.schema, epsilon=EPSILON, random_state=0, ledger=ledger).fit(rows),
        lambda: model.predict(car.X[:1]),
        lambda: vw.load(saved),
        lambda: vw.evaluate(model, rows, epsilon=EPSILON, ledger=ledger),
    )
    return dict(zip(WALKS, works, strict=True))


def median_walk(work: Callable[[], object], repeats: int) -> Walk:
    """Return the median of several walks; a first run only loads what is loaded once."""
    work()
    return sorted((follow(work) for _ in range(repeats)), key=lambda walk: walk.changes)[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="walks, of which the median is shown")
    parser.add_argument("--edges", type=int, default=15, help="most frequent calls between modules to list")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # about accuracy: one row is little to learn from

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in prepare_walks(Path(folder)).items():
            walk = median_walk(work, options.repeats)
            figures[name] = {"modules": sorted(walk.modules), "changes": walk.changes}
            print(f"## {name.capitalize()}\n\n{len(walk.modules)} modules, {walk.changes} changes of module.\n")
            print("| from | to | calls |\n|---|---|---|")
            for (here, there), times in walk.calls.most_common(options.edges):
                print(f"| `{here}` | `{there}` | {times} |")
            print()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
