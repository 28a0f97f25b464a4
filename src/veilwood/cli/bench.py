# SPDX-License-Identifier: Apache-2.0
"""The command bench: how accurate estimators are on public tables, and how fast. What is measured is in ``bench``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from veilwood.cli.options import Delta, check_output
from veilwood.errors import UseError

__all__ = ["bench"]

bench = typer.Typer(help="Measure estimators on public tables; no private data.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    pass


@bench.command()
def accuracy(
    suite: Annotated[
        str, typer.Option(metavar="SUITE", help="development (constants were settled on it) or validation.")
    ] = "development",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Real tables: NAME.csv.gz and NAME.json; else made ones only.")
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="FILE.csv", help="Every result; a run that was broken off goes on from it.")
    ] = Path("accuracy.csv"),
    others: Annotated[
        list[Path] | None, typer.Option("--with", metavar="FILE.csv", help="A further cache to report on; repeatable.")
    ] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", metavar="NAME", help="PrivateForest, a sibling, DP-EBM, diffprivlib; repeatable."),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", metavar="E", help="A budget; repeatable. Default: seven of them.")
    ] = None,
    delta: Delta = 0.0,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only these tables; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Splits of each table.")] = 10,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Processes.")] = 1,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Plain forests, and the floor that skill starts from.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.md", help="The report, table by table.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the report.")] = False,
) -> None:
    """Measure the skill of private forests on a suite of public tables.

    Skill is 0 for the most frequent class, or the mean, and 1 for the best forest without privacy. Siblings, plain
    forests and those of other libraries learn from the same splits. Other libraries get virtual environments of their
    own, made when first needed; a line says when that is not possible.

    \b
    Example:
      veilwood bench accuracy --table iris --table twonorm --seeds 2 --epsilon 1 -o skill.md
      veilwood bench accuracy --suite validation --data tables --cache validation.csv --jobs 8
      veilwood bench accuracy --estimator DP-EBM --delta 1e-6 --no-references --cache dp-ebm.csv --with validation.csv
    """
    from veilwood.bench import suite as suites  # scikit-learn's boosting would slow the start of every other command
    from veilwood.bench.peers import PEERS
    from veilwood.bench.tables import names

    known: tuple[Literal["development", "validation"], ...] = ("development", "validation")
    which = next((name for name in known if name == suite), None)
    if which is None:
        raise UseError(f"there is no suite {suite!r}. Hint: development or validation.")
    if data is not None and not data.is_dir():
        raise UseError(f"{data} is not a folder. Hint: give the folder of the real tables, or leave --data out.")
    if out is not None:
        check_output(out, force)
    asked = tuple(estimator or (*suites.ESTIMATORS, *PEERS))
    for name in asked:
        if name not in suites.ESTIMATORS and name not in PEERS and ".py:" not in name:
            allowed = ", ".join((*suites.ESTIMATORS, *PEERS))
            raise UseError(f"there is no estimator {name!r} in the suite. Hint: {allowed}, or FILE.py:NAME.")
    there = names(which, data)
    if missing := [name for name in table or () if name not in there]:
        raise UseError(f"the suite has no table {missing[0]!r} here. Hint: one of {', '.join(there)}.")
    text = suites.run_suite(
        which, data, cache, estimators=asked, epsilons=tuple(epsilon or suites.BUDGETS), delta=delta, seeds=seeds,
        tables=table, n_jobs=jobs, references=references, others=tuple(others or ()),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(text.split("\n## ")[0])
    if out is not None:
        out.write_text(text, encoding="utf-8")
        print(f"Report: {out}")


@bench.command()
def speed(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.json", help="All figures; a FILE.md stands beside it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small tables: to see that it works.")] = False,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="DP-EBM, in an environment of its own.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the results.")] = False,
) -> None:
    """Measure CPU seconds and memory of fits and predictions beside other libraries, and how they grow.

    Every fit is a process of one thread. A full run takes some minutes of one core.

    \b
    Example:
      veilwood bench speed -o speed.json
      veilwood bench compare old.json speed.json
    """
    from veilwood.bench.speed import run_speed, told  # scikit-learn's boosting would slow other commands

    if out is not None:
        check_output(out, force)
    found = run_speed(quick=quick, peers=peers, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(told(found))
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(told(found), encoding="utf-8")


@bench.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD.json", help="What bench speed wrote.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.json", help="What it wrote later.")],
) -> None:
    """Say what got slower between two results of bench speed; exit with 1 if anything did.

    Times are compared as multiples of HistGradientBoosting in the same run, so that machines may differ.
    """
    from veilwood.bench.speed import slower

    found = slower(old, new)
    print("\n".join(found) if found else "Nothing got slower.")
    if found:
        raise typer.Exit(1)
