# SPDX-License-Identifier: Apache-2.0
"""The command that compares settings without data. How they are ranked is in ``veilwood.tune``."""

from __future__ import annotations

from typing import Annotated

import typer

from veilwood import estimators
from veilwood.cli.options import AsJson, Delta, Epsilon, Params, read_params, say
from veilwood.cli.schema import SchemaPath
from veilwood.data.schema import Schema
from veilwood.errors import UseError
from veilwood.tune import averaging, tunable, tune

__all__ = ["tune_settings"]


def tune_settings(
    schema: SchemaPath,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="How many rows, if public; or a guess.")],
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    estimator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A family or class; may be repeated. Default: all."),
    ] = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Plan many settings and rank them; no data is read, nothing is spent.

    PrivateForest is not among them: it chooses for itself.

    \b
    Example:
      veilwood tune --schema visits.json --rows 2000 --epsilon 0.5 --estimator random-trees --param max_depth=[2,3,4]
    """
    declared = Schema.load(schema)
    own = [kind for kind in tunable() if kind.task == declared.task]
    if estimator:
        asked = {name if name not in estimators.__all__ else estimators.family_of(name) for name in estimator}
        unknown = asked - {estimators.family_of(kind.__name__) for kind in own}
        if unknown:
            known = ", ".join(dict.fromkeys(estimators.family_of(kind.__name__) for kind in own))
            raise UseError(f"{sorted(unknown)[0]!r} cannot be tuned for {declared.task}. Hint: one of {known}.")
        own = [kind for kind in own if estimators.family_of(kind.__name__) in asked]
    grid = {key: value if isinstance(value, list) else [value] for key, value in read_params(param).items()}
    found = tune(declared, [averaging(kind) for kind in own], n=rows, epsilon=epsilon, delta=delta, grid=grid)
    say(as_json, found.to_dict(), str(found))
