# SPDX-License-Identifier: Apache-2.0
"""One page with every exhibit."""

from __future__ import annotations

import re
from pathlib import Path

from veilwood_papers.exhibit import Row
from veilwood_papers.runner import Run, all_exhibits
from veilwood_papers.show import html_report
from veilwood_testing.exhibits import cheapest, results_of_exhibit


def test_the_report_is_one_page_with_every_exhibit(found: dict[str, list[Row]], tmp_path: Path) -> None:
    run = Run(tmp_path / "quick", quick=True)
    for exhibit in all_exhibits():
        store, rows = run.open_store(exhibit.experiment), found.get(exhibit.experiment.name)
        if rows:
            store.add(cheapest(list(exhibit.experiment.jobs(True))).name, rows)
            store.save()
    text = html_report(all_exhibits(), run)
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "the page is self-contained"
    assert all(f'id="{exhibit.slug}"' in text for exhibit in all_exhibits())
    assert (
        text.count("data:image/svg+xml")
        == sum(bool(results_of_exhibit(e, found).measured) for e in all_exhibits())
        > 12
    )
    assert "NOT PRIVATE" in text
