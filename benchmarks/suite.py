# SPDX-License-Identifier: Apache-2.0
"""Measure the accuracy of private estimators on a development and a validation suite of tables.

    python benchmarks/suite.py --suite development --data DATA --cache suite.csv --out suite.md

``veilwood bench accuracy`` does the same; the code is in ``veilwood_papers.suite.accuracy``. ``--with OTHER.csv``
merges several caches into one report. ``--estimators DP-EBM diffprivlib`` selects the forests of other libraries. Add
``--no-references`` if another cache has the rest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from veilwood_papers.suite.accuracy import BUDGETS, ESTIMATORS, read_results, render_report, run_suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=("development", "validation"), default="development")
    parser.add_argument("--data", type=Path, help="folder of real tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--with", dest="others", nargs="*", type=Path, default=[], help="further caches to report on")
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS))
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(BUDGETS))
    parser.add_argument("--delta", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-references", action="store_true", help="no floor and no plain forests")
    parser.add_argument("--only-report", action="store_true")
    given = parser.parse_args()
    if given.only_report:
        text = render_report(read_results(given.cache, *given.others), given.suite, given.delta)
    else:
        text = run_suite(
            given.suite,
            given.data,
            given.cache,
            estimators=given.estimators,
            epsilons=given.epsilons,
            delta=given.delta,
            seeds=given.seeds,
            tables=given.tables,
            n_jobs=given.jobs,
            references=not given.no_references,
            others=given.others,
            print_line=lambda line: print(line, flush=True),
        )
    print(text.split("\n## ")[0])
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
