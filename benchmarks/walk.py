# SPDX-License-Identifier: Apache-2.0
"""Follow one row of a CSV file through a fit: which modules it passes, and how often control moves to another module.

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
# PrivateForest by rounds: earlier versions are told so, later ones go by the number of rows.
BY_ROUNDS = {"method": "boosting"} if "method" in vw.PrivateForestClassifier().get_params() else {"n_rows": 30_000}
WALKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "random trees": (vw.RandomTreesClassifier, {"n_estimators": 20, "max_depth": 5}),
    "PrivateForest, by rounds": (vw.PrivateForestClassifier, BY_ROUNDS),
}


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


def one_row(folder: Path) -> tuple[Path, vw.Schema]:
    """Write a CSV file of one row; return it, and its schema."""
    data, row = vw.datasets.balance_scale(), folder / "row.csv"
    data.X[:1].assign(**{data.schema.target.name: data.y[:1]}).to_csv(row, index=False)
    return row, data.schema


def walks(name: str, row: Path, schema: vw.Schema, repeats: int) -> list[Walk]:
    """Fit one row several times; the first fit only loads what is loaded once."""
    make, parameters = WALKS[name]

    def fit() -> object:
        return make(schema, random_state=0, **parameters).fit(str(row))

    fit()
    return sorted((follow(fit) for _ in range(repeats)), key=lambda walk: walk.changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="walks, of which the median is shown")
    parser.add_argument("--edges", type=int, default=15, help="most frequent calls between modules to list")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # about accuracy: one row is little to learn from

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        row, schema = one_row(Path(folder))
        for name in WALKS:
            walk = walks(name, row, schema, options.repeats)[options.repeats // 2]
            figures[name] = {"modules": sorted(walk.modules), "changes": walk.changes}
            print(f"## One row through {name}\n\n{len(walk.modules)} modules, {walk.changes} changes of module.\n")
            print("| from | to | calls |\n|---|---|---|")
            for (here, there), times in walk.calls.most_common(options.edges):
                print(f"| `{here}` | `{there}` | {times} |")
            print()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
