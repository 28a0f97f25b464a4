# SPDX-License-Identifier: Apache-2.0
"""``veilwood demo``: private forests on embedded public data, compared with two baselines.

The data comes from ``veilwood.datasets``, the figures from ``veilwood.plots``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from veilwood import datasets
from veilwood.cli.options import AsJson, format_next_commands
from veilwood.cli.terminal import labelled
from veilwood.datasets import Dataset
from veilwood.errors import UseError, UtilityWarning, WeakGuaranteeWarning
from veilwood.estimators import PrivateForestClassifier
from veilwood.models.file import save
from veilwood.plots import Comparison, accuracy_vs_epsilon
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import guarantee_strength
from veilwood.progress import track_progress

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
N_RUNS = 3
TEST_FRACTION = 0.2
DATASET_NAMES = ("iris", "balance_scale", "car")
EXAMPLE_NAME = "balance_scale"  # the demo writes the model and certificate of this data set
EXAMPLE_EPSILON = 2.0


@dataclass(frozen=True)
class DemoResult:
    """Accuracies that the demo measured, and the files that it wrote."""

    comparisons: tuple[Comparison, ...]
    files: dict[str, Path]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "estimator": PrivateForestClassifier.__name__,
            "runs": N_RUNS,
            "accuracy": {
                data.name: {
                    "private": dict(zip(map(str, data.epsilons), data.private.mean(axis=0).round(4), strict=True)),
                    "non_private": round(data.non_private, 4),
                    "majority": round(data.majority, 4),
                }
                for data in self.comparisons
            },
            "files": {name: str(path) for name, path in self.files.items()},
        }

    def print_table(self) -> None:
        """Print a table of accuracies, and the paths of the files."""
        console = Console(soft_wrap=True, highlight=False)
        title = f"Accuracy on held-out rows, mean of {N_RUNS} splits (smaller epsilon: more privacy)"
        table = Table("data", "rows", "majority", title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for epsilon in EPSILONS:
            table.add_column(f"ε={epsilon:g}", justify="right", style="bold")
        table.add_column("ordinary", justify="right")
        for data in self.comparisons:
            private = [f"{mean:.2f}" for mean in data.private.mean(axis=0)]
            rows = str(len(getattr(datasets, data.name)().X))
            table.add_row(data.name, rows, f"{data.majority:.2f}", *private, f"{data.non_private:.2f}")
        console.print(table)
        console.print("majority: the most frequent class. ordinary: scikit-learn's RandomForestClassifier, no privacy.")
        console.print("ε: PrivateForestClassifier with default parameters: only a schema and an epsilon are given.")
        console.print("More rows allow a smaller epsilon.")
        console.print("\nWritten:")
        for name, path in self.files.items():
            console.print(f"  {name:<11} {path}")
        factor = guarantee_strength(EXAMPLE_EPSILON).factor
        promised = (
            f"The model of {EXAMPLE_NAME} satisfies epsilon={EXAMPLE_EPSILON:g} for one row: whatever "
            "an attacker knows, "
            "seeing the model changes the odds of any conclusion about one row by a factor of at most "
            f"{factor}. The certificate lists the noise and the assumptions."
        )
        console.print("\n" + labelled([("Promised", promised)]))
        commands = ["veilwood schema draft YOUR.csv --target COLUMN -o schema.json", "veilwood serve --demo"]
        if "model" in self.files:
            commands.insert(0, f"veilwood report {self.files['model']}")
        console.print("\n" + format_next_commands(commands))


def run_demo(folder: Path) -> DemoResult:
    """Train and evaluate, and write a figure, a model and its certificate into an existing folder."""
    with warnings.catch_warnings():
        # Low accuracy at small epsilons, and a weak guarantee at large ones, are what the demo shows.
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", WeakGuaranteeWarning)
        comparisons = tuple(
            track_progress((_compare_forests(name) for name in DATASET_NAMES), "training on embedded data")
        )
        data: Dataset = getattr(datasets, EXAMPLE_NAME)()
        forest = _make_forest(data, EXAMPLE_EPSILON, random_state=0).fit(data.X, data.y)
    files = {
        "picture": folder / "accuracy.png",
        "model": folder / f"{EXAMPLE_NAME}.veilwood",
        "certificate": folder / "certificate.md",
        "as JSON": folder / "certificate.json",
    }
    accuracy_vs_epsilon(comparisons).savefig(files["picture"], dpi=150)
    save(forest, files["model"])
    files["certificate"].write_text(forest.privacy_.to_markdown(), encoding="utf-8")
    files["as JSON"].write_text(forest.privacy_.to_json() + "\n", encoding="utf-8")
    return DemoResult(comparisons, files)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder.")] = Path("veilwood-demo"),
    as_json: AsJson = False,
) -> None:
    """Train private forests on embedded public data, in seconds.

    Compares several epsilons with an ordinary forest. Writes a figure, a model and its certificate.

    \b
    Example:
      veilwood demo --out veilwood-demo
    """
    if out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file. Hint: pass the path of a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    result = run_demo(out)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.print_table()


def _make_forest(data: Dataset, epsilon: float, random_state: int) -> PrivateForestClassifier:
    # A new ledger per fit: the data is public, so the losses of repeated fits need not be added.
    return PrivateForestClassifier(data.schema, epsilon=epsilon, random_state=random_state, ledger=MemoryLedger())


def _compare_forests(name: str) -> Comparison:
    data: Dataset = getattr(datasets, name)()
    private, ordinary, trivial = [], [], []
    for seed, (train, test) in enumerate(_split_rows(data)):
        X, y, held_out, truth = data.X.iloc[train], data.y.iloc[train], data.X.iloc[test], data.y.iloc[test]
        forests = [_make_forest(data, epsilon, seed).fit(X, y) for epsilon in EPSILONS]
        private.append([float(np.mean(forest.predict(held_out) == truth)) for forest in forests])
        ordinary.append(_ordinary_forest(seed).fit(X, y).score(held_out, truth))
        trivial.append(float(np.mean(truth == y.mode()[0])))
    return Comparison(name, EPSILONS, np.array(private), float(np.mean(ordinary)), float(np.mean(trivial)))


def _split_rows(data: Dataset) -> Iterator[tuple[Any, Any]]:
    splitter = StratifiedShuffleSplit(N_RUNS, test_size=TEST_FRACTION, random_state=0)
    yield from splitter.split(data.X, data.y)


def _ordinary_forest(seed: int) -> Any:
    texts = make_column_selector(dtype_include=object)
    coded = make_column_transformer((OneHotEncoder(), texts), remainder="passthrough")
    return make_pipeline(coded, RandomForestClassifier(n_estimators=100, random_state=seed))
