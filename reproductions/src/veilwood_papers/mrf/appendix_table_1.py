# SPDX-License-Identifier: Apache-2.0
"""Table 1 of the appendix of M-RF: sizes of the data sets."""

from __future__ import annotations

from collections.abc import Iterator

from veilwood_papers.drawing import draw_agreement
from veilwood_papers.exhibit import Cell, Exhibit, Experiment, Job, Row, Value, Values, read_published, reason_lookup
from veilwood_papers.tables import PublicTables

TABLES = {
    "Car": "car", "Iris": "iris", "Balance": "balance-scale", "Adult": "adult-a1at", "Heart": "heart",
    "Mushroom": "mushroom",
}  # fmt: skip


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per data set."""
    return [Job(panel, table, {"panel": panel}, 0.2) for panel, table in TABLES.items()]


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure the number of rows, columns and classes."""
    table = tables.load_table(job.table)
    for name, size in (("records", len(table.X)), ("features", table.X.shape[1]), ("classes", table.y.nunique())):
        yield Row(Cell(job.settings["panel"], "size", name, "number"), 0, float(size))


def published_values() -> Values:
    """Return the printed numbers."""
    values: Values = {}
    for row in read_published("mrf_datasets"):
        panel = row["dataset"].removesuffix(" (paper)")
        if panel in TABLES:
            sizes = {
                "records": row["records_in_paper"],
                "features": row["features"].split()[0],
                "classes": row["classes"],
            }
            values |= {Cell(panel, "size", name, "number"): Value(float(size)) for name, size in sizes.items()}
    return values


deviation_reason = reason_lookup(
    {}, "known: the appendix counts 124 features of Adult, its code and LIBSVM's file 123."
)
EXHIBITS = (
    Exhibit(
        "mrf", "appendix table 1", "Sizes of the data sets", "As they are in the files.", Experiment("mrf-sizes",
        list_jobs, measure_job),
        draw_agreement, published=published_values, why=deviation_reason,
    ),
)  # fmt: skip
