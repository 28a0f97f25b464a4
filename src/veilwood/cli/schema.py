# SPDX-License-Identifier: Apache-2.0
"""The commands about schemas: draft one from a table, and check a table against one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.options import AsJson, Force, ShowValues, check_output, say
from veilwood.data.check import check_files
from veilwood.data.draft import draft
from veilwood.data.private_text import showing_values
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError

__all__ = ["SchemaPath", "Table", "schemas"]

schemas = typer.Typer(help="Draft or check what is public of a table.", rich_markup_mode=None)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="CSV (also .gz), Parquet or Arrow; a folder or a glob.")]
SchemaPath = Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="The schema, a JSON file.")]


@schemas.command("draft")
def schema_draft(
    table: Table,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target; the last column if unsaid.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; else printed.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a table and draft a schema for a person to review.

    Bounds and categories in the draft come from the data. Replace them by what is publicly known and delete the
    marks (each column's "bounds", "notes", "inferred"); until then every model made with it is NOT PRIVATE.

    \b
    Example:
      veilwood schema draft visits.csv --target ill -o visits.json
    """
    if out is not None:
        check_output(out, force)
    found = draft(table, target)
    columns = ",\n".join(f"  {json.dumps(column, ensure_ascii=False)}" for column in found["columns"])
    head = json.dumps({key: value for key, value in found.items() if key != "columns"}, indent=1, ensure_ascii=False)
    text = f'{head[:-2]},\n "columns": [\n{columns}\n ]\n}}'  # a column a line: easier to review
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    n_features, goal = len(found["columns"]) - 1, found["target"]
    say(
        as_json,
        {"schema": str(out), "task": found["task"], "target": goal},
        f"Wrote {out}: {found['task']} of {goal!r} from {n_features} columns. It was read off the data: review every "
        'bound and category, and delete the marks: "bounds" of each column, "notes" and "inferred".',
    )


@schemas.command("check")
def schema_check(table: Table, schema: SchemaPath, show_values: ShowValues = False, as_json: AsJson = False) -> None:
    """Check that every row of a table fits a schema, before any budget is spent.

    Lists every column and kind of problem, and how many rows have it. Such counts are private: this command is for
    whoever holds the data.

    \b
    Example:
      veilwood schema check visits.csv --schema visits.json
      veilwood schema check visits.csv --schema visits.json --show-values
    """
    declared = Schema.load(schema)
    with showing_values(show_values):
        misfits = check_files(table, declared)
    data = {
        "fits": not misfits,
        "inferred": declared.inferred,
        "schema": declared.to_dict(),
        "problems": [misfit.to_dict() for misfit in misfits],
    }
    if misfits:
        if as_json:
            print(json.dumps(data, indent=2))
        raise OutOfSchemaError(
            f"{table} does not fit {schema}: {'; '.join(map(str, misfits))}. "
            f"Hint: {'correct the table or the schema' if show_values else '--show-values shows rows and values'}.",
            column=misfits[0].column,
        )
    mark = "\nIt is an unreviewed draft: what is made with it is NOT PRIVATE." if declared.inferred else ""
    say(as_json, data, f"{declared}\nEvery row of {table} fits; numbers outside the bounds are clamped.{mark}")
