# SPDX-License-Identifier: Apache-2.0
"""All tables and figures that can be reproduced, by paper and number."""

from __future__ import annotations

import importlib
from functools import lru_cache

from veilwood.errors import UseError
from veilwood.papers.exhibit import Exhibit

PAPERS = {
    "mrf": "Tajima, Wu, Houmansadr: Improving Private Random Forest Prediction Using Matrix Representation. AAAI 2025.",
    "rdt": "Bojarski, Choromanska, Choromanski, LeCun: Differentially- and non-differentially-private random decision "
    "trees. 2014.",
    "diprime": "Consul, Williamson: Balance is key: Private median splits yield high-utility random trees. 2020.",
    "secure": "Enhanced Privacy-Preserving Decision Trees using Secure Multiparty Computation and Differential "
    "Privacy.",
}


# One module a table or figure, or a few where they show the same experiment; each has EXHIBITS.
MODULES = (
    "mrf.figure_2", "mrf.sizes", "mrf.queries", "mrf.subsample", "mrf.table_1", "mrf.appendix_table_1",
    "mrf.appendix_table_2", "rdt.table_1", "rdt.size_figures", "rdt.eta_figures", "diprime.tables",
    "diprime.figures_1_and_5", "diprime.figures_2_and_6", "diprime.figure_3", "diprime.figure_4",
    "diprime.figures_7_and_8", "mpc.figure_2", "mpc.figure_3", "mpc.figure_4", "mpc.figure_5", "mpc.figure_6",
    "mpc.table_1",
)  # fmt: skip


EXHIBITS_OF = 39
"""How many tables and figures the four papers have that show something measured."""


@lru_cache
def exhibits() -> tuple[Exhibit, ...]:
    """Return every table and figure, by paper, kind and number.

    >>> len(exhibits()) == EXHIBITS_OF
    True
    """
    found = [exhibit for module in MODULES for exhibit in importlib.import_module(f"veilwood.papers.{module}").EXHIBITS]
    return tuple(sorted(found, key=_order))


def _order(exhibit: Exhibit) -> tuple[int, bool, str, int, str]:
    *kind, number = exhibit.number.split(" ")
    digits = number.rstrip("ab")
    return list(PAPERS).index(exhibit.paper), kind[0] == "appendix", kind[-1], int(digits), number


def chosen(paper: str, *, figure: str | None = None, table: str | None = None) -> list[Exhibit]:
    """Return the exhibits that a command asks for: of one paper or all, of one number or all.

    >>> [exhibit.name for exhibit in chosen("rdt", table="1")]
    ['rdt table 1']
    """
    if paper != "all" and paper not in PAPERS:
        raise UseError(f"there is no paper {paper!r}. Hint: {', '.join(PAPERS)} or all.")
    of_paper = [exhibit for exhibit in exhibits() if paper in ("all", exhibit.paper)]
    if figure is None and table is None:
        return of_paper
    wanted = {f"{kind} {n}" for kind, n in (("figure", figure), ("table", table)) if n is not None}
    wanted |= {f"appendix {name.replace(' a', ' ')}" for name in wanted if " a" in name}
    found = [exhibit for exhibit in of_paper if exhibit.number in wanted]
    if not found:
        known = ", ".join(exhibit.number for exhibit in of_paper)
        raise UseError(f"{paper} has no {' or '.join(sorted(wanted))}. Hint: one of {known}.")
    return found
