# SPDX-License-Identifier: Apache-2.0
"""Compare two versions of PrivateForest on the validation suite, by units of several rows, and at small budgets.

    python benchmarks/suite.py --suite validation --data DATA --cache AFTER.csv
    python benchmarks/changes.py measure --data DATA --cache AFTER_UNITS.csv
    python benchmarks/changes.py report AFTER.csv BEFORE.csv AFTER_UNITS.csv BEFORE_UNITS.csv --out FILE.md

Run the first two with each version. Splits are the same for both, noise is not. "Worse" means by more than a point and
two standard errors.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import veilwood as vw
from veilwood_papers.suite.accuracy import MIN_GAP, SIBLINGS, add_skills, read_results
from veilwood_papers.suite.tables import load_table, split_rows

PEOPLE = ("car", "titanic", "waveform", "hastie", "ringnorm", "puc-rio", "image-segments", "friedman2", "robot-arm-8",
          "correlated-regression")  # fmt: skip
COPIED = ("car", "waveform", "hastie", "friedman2", "robot-arm-8", "image-segments")
MAX_ROWS_EACH, KEPT = 8, 0.7  # rows of a person, and the probability that a row has a person's own value
SMALL_BUDGETS, DELTA, SEEDS = (0.01, 0.02, 0.03, 0.1, 0.5), 5e-8, 20
# Best row per budget of the result files of S-BDT (arXiv 2309.12041, kirschte/sbdt), settings chosen on the test score.
SBDT_AUC = (0.787, 0.831, 0.849, 0.876, 0.893)
# PrivaTree (arXiv 2305.15394), one tree of depth 4, accuracy at epsilon 0.01 and 1, five folds.
PRIVATREE = {"adult": (0.751, 0.822), "mushroom": (0.694, 0.949), "congressional-voting": (0.689, 0.867)}


def repeat_people(X: pd.DataFrame, y: pd.Series, rows: Any, seed: int, varied: bool) -> tuple[pd.DataFrame, pd.Series]:
    """Return rows of people: each of them is one of the rows, and in every row of theirs some values are of others."""
    rng, people = np.random.default_rng([seed, 11]), rows[: len(rows) // 4]
    n_rows = rng.integers(1, MAX_ROWS_EACH + 1, len(people)) if varied else np.full(len(people), MAX_ROWS_EACH)
    own = np.repeat(people, n_rows)
    values = {}
    for name in X.columns:
        column, is_own, others = X[name].to_numpy(), rng.random(len(own)) < KEPT, rng.choice(rows, len(own))
        values[name] = np.where(is_own, column[own], column[others])
    frame = pd.DataFrame(values).astype(X.dtypes.to_dict())
    return frame.assign(person=np.repeat(np.arange(len(people)), n_rows)), pd.Series(y.to_numpy()[own], name=y.name)


def list_fits() -> Iterator[tuple[str, str, str, int, float, tuple[float, ...], dict[str, Any]]]:
    """Yield part, suite, table, seed, delta, epsilons and settings."""
    for table in PEOPLE:
        for seed in range(6):
            for varied in (True, False):
                for at_most in (1, 3, 8):
                    yield "people", "validation", table, seed, 0.0, (0.5, 1, 4), {"varied": varied, "at_most": at_most}
    for table in COPIED:
        for seed in range(6):
            for copies in (1, 8):
                yield "copies", "validation", table, seed, 0.0, (0.5, 1, 4), {"copies": copies}
    for seed in range(SEEDS):
        for delta in (0.0, DELTA):
            yield "small budgets", "development", "adult", seed, delta, SMALL_BUDGETS, {}
        yield "rare", "development", "rare-positives", seed, 0.0, (0.5, 1, 2, 4), {}
    for table in PRIVATREE:
        suite = "validation" if table == "congressional-voting" else "development"
        for seed in range(10):
            yield "one tree", suite, table, seed, 0.0, (0.01, 1.0), {}


def measure(folder: Path, cache: Path) -> None:
    """Run all fits and write their scores."""
    lines, tables = [], {}
    for part, suite, name, seed, delta, epsilons, settings in list_fits():
        schema, X, y = tables.setdefault(name, load_table(suite, name, folder))  # type: ignore[arg-type]
        train, test = split_rows(len(y), seed)
        if part in ("small budgets", "one tree"):  # four fifths
            order = np.random.default_rng([seed, 9]).permutation(len(y))
            train, test = order[len(y) // 5 :], order[: len(y) // 5]
        unit: Any = settings.get("copies", "row")
        train = np.repeat(train, settings.get("copies", 1))
        rows, labels = X.iloc[train], y.iloc[train]
        if part == "people":
            rows, labels = repeat_people(X, y, train, seed, settings["varied"])
            unit = {"id": "person", "at_most": settings["at_most"]}
        kind = vw.PrivateForestClassifier if schema.task == "classification" else vw.PrivateForestRegressor
        for epsilon in epsilons:
            forest = kind(schema, epsilon=epsilon, delta=delta, privacy_unit=unit, random_state=seed, n_jobs=1)
            forest.fit(rows, labels)
            auc = np.nan
            if len(schema.classes) == 2:
                positive = y.iloc[test].to_numpy() == schema.classes[1]
                auc = roc_auc_score(positive, forest.predict_proba(X.iloc[test])[:, 1])
            score = forest.score(X.iloc[test], y.iloc[test])
            note = ", ".join(f"{key} {value}" for key, value in settings.items())
            lines.append({"part": part, "table": name, "epsilon": epsilon, "delta": delta, "seed": seed,
                          "score": score, "auc": auc, "note": note})  # fmt: skip
        pd.DataFrame(lines).to_csv(cache, index=False)


# -- the page ----------------------------------------------------------------------------------------------------------


def make_table(frame: pd.DataFrame) -> list[str]:
    """Return a table in Markdown with one column for each epsilon."""
    lines = ["| | " + " | ".join(f"{column:g}" for column in frame.columns) + " |"]
    lines.append("|---" * (len(frame.columns) + 1) + "|")
    for name, row in zip(frame.index, frame.to_numpy(), strict=True):
        cells = ("-" if np.isnan(value) else f"{value:.3f}" for value in row)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def compare_versions(after: pd.DataFrame, before: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return means of both versions and of the difference, with its standard error over splits."""
    keys = ["epsilon", "table", "seed"]
    one, other = (each.set_index(keys)[measure] for each in (after, before))
    both = one.to_frame("after").join(other.rename("before")).dropna()
    difference = (both.after - both.before).groupby(["epsilon", "table"])
    error = (difference.var() / difference.count()).groupby("epsilon").agg(lambda each: each.sum() ** 0.5 / len(each))
    means = both.groupby(["epsilon", "table"]).mean().groupby("epsilon").mean()
    spreads = both.groupby(["epsilon", "table"]).std().groupby("epsilon").mean()
    rows = {f"{measure} before": means.before, f"{measure} after": means.after,
            "difference": means.after - means.before, "standard error": error}  # fmt: skip
    if measure == "skill":
        rows |= {"spread between splits, before": spreads.before, "spread between splits, after": spreads.after}
    return pd.DataFrame(rows).T


def find_worse(results: pd.DataFrame, pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return pairs of cells (table, epsilon, delta, estimator) of which the first scores worse than the second."""
    cells = results.groupby(["table", "epsilon", "delta", "estimator"]).score.agg(["mean", "var", "count"])
    found = []
    for one, other in pairs:
        if one in cells.index and other in cells.index:
            here, there = cells.loc[one], cells.loc[other]
            gap = there["mean"] - here["mean"]
            if gap > 0.01 + 2 * (here["var"] / here["count"] + there["var"] / there["count"]) ** 0.5:
                found.append(f"{one[0]} at {one[1]:g} (by {gap:.3f}, {other[3]} at {other[1]:g}, delta {other[2]:g})")
    return found


def render(after: pd.DataFrame, before: pd.DataFrame, units: dict[str, pd.DataFrame]) -> str:
    """Return the page."""
    skilled = [skills[skills.gap >= MIN_GAP] for skills in map(add_skills, (after, before))]
    text = ["# PrivateForest before and after the changes of this version", "",
            f"{skilled[0].table.nunique()} tables of the validation suite, {skilled[0].seed.nunique()} splits each, "
            "n_rows left out. Constants were settled on development tables. Before: beb3f99.", ""]  # fmt: skip
    for delta in (0.0, 1e-6):
        new, old = (each[(each.estimator == "PrivateForest") & (each.delta == delta)] for each in skilled)
        text += [f"## Delta {delta:g}", ""]
        for measure in ("skill", "log_loss", "auc"):
            text += make_table(compare_versions(new, old, measure))
    ours = skilled[0][skilled[0].estimator.isin(["PrivateForest", *SIBLINGS])]
    tables, epsilons, ourselves = sorted(ours.table.unique()), sorted(ours.epsilon.unique()), "PrivateForest"
    cells = [(table, epsilon) for table in tables for epsilon in epsilons]
    comparisons = {
        "another forest of this library": (
            ((table, epsilon, 0.0, ourselves), (table, epsilon, 0.0, sibling))
            for table, epsilon in cells for sibling in SIBLINGS
        ),
        "a smaller epsilon": (
            ((table, epsilon, delta, ourselves), (table, less, delta, ourselves))
            for less, epsilon in pairwise(epsilons) for table in tables for delta in (0.0, 1e-6)
        ),
        "no delta": (
            ((table, epsilon, 1e-6, ourselves), (table, epsilon, 0.0, ourselves)) for table, epsilon in cells
        ),
    }  # fmt: skip
    for what, pairs in comparisons.items():
        found = find_worse(ours, pairs)
        text += [f"Worse than {what}: {len(found)} cells of {len(cells)}. {'; '.join(found) or 'None'}.", ""]
    return "\n".join([*text, *render_people(units), *render_small_budgets(units)])


def render_people(units: dict[str, pd.DataFrame]) -> list[str]:
    """Return the lines about people with several rows."""
    text = ["## People with several rows", "",
            "Ten tables, 1 to 8 rows of each person or 8, six splits: mean score, then its spread between splits. "
            "Before, at most so many rows of a person counted; after, they share this weight.", ""]  # fmt: skip
    for statistic in ("mean", "std"):
        frames = []
        for version, frame in units.items():
            scores = frame[frame.part == "people"].groupby(["note", "epsilon", "table"]).score.agg(statistic)
            frames.append(scores.groupby(["note", "epsilon"]).mean().unstack().rename(f"{version}, {{}}".format))
        text += make_table(pd.concat(frames))
    text += ["## Eight copies of each row, eight rows protected, and one row each", "",
             "Mean score of six tables, six splits; rows times epsilon of a unit are the same.", ""]  # fmt: skip
    copies = units["after"][units["after"].part == "copies"]
    return text + make_table(copies.groupby(["note", "epsilon"]).score.mean().unstack())


def render_small_budgets(units: dict[str, pd.DataFrame]) -> list[str]:
    """Return the lines about Adult, single trees and a rare class."""
    text = ["## Small budgets on Adult", "",
            f"AUC, four fifths to train, {SEEDS} splits. S-BDT: its own result files, the best of 80 to 90 settings "
            f"by the test score, delta {DELTA:g}.", ""]  # fmt: skip
    every = pd.concat(
        [frame[frame.part == "small budgets"].assign(version=version) for version, frame in units.items()]
    )
    name = "PrivateForest " + every.version + ", delta " + every.delta.map("{:g}".format)
    auc = every.assign(name=name).groupby(["name", "epsilon"]).auc.agg(["mean", "std"]).unstack()
    text += make_table(pd.concat([auc["mean"], pd.DataFrame([SBDT_AUC], ["S-BDT"], SMALL_BUDGETS)]))
    text += ["Spread between splits:", "", *make_table(auc["std"])]
    text += [
        "## One private tree of depth 4",
        "",
        "Accuracy, ten splits; PrivaTree: its published figures, five folds.",
        "",
    ]
    trees = units["after"][units["after"].part == "one tree"].groupby(["table", "epsilon"]).score.mean().unstack()
    published = pd.DataFrame(PRIVATREE, index=trees.columns).T
    both = [trees.rename("{}, PrivateForest".format), published.rename("{}, PrivaTree".format)]
    text += make_table(pd.concat(both).sort_index())
    text += ["## Two percent of positives", "", "AUC of `rare-positives` (14,000 rows, 280 positives), 20 splits.", ""]
    rare = {version: frame[frame.part == "rare"].groupby("epsilon").auc.mean() for version, frame in units.items()}
    return text + make_table(pd.DataFrame(rare).T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--data", type=Path, required=True, help="folder of real tables: NAME.csv.gz and NAME.json")
    measuring.add_argument("--cache", type=Path, required=True)
    reporting = commands.add_parser("report")
    reporting.add_argument("caches", type=Path, nargs=4, help="suite after, suite before, units after, units before")
    reporting.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.command == "measure":
        measure(given.data, given.cache)
        return
    suites = [read_results(given.caches[0]), read_results(given.caches[0], given.caches[1])]
    suites = [each[each.suite == "validation"] for each in suites]
    units = dict(zip(("before", "after"), map(pd.read_csv, (given.caches[3], given.caches[2])), strict=True))
    given.out.write_text(render(*suites, units))


if __name__ == "__main__":
    main()
