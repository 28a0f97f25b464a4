# SPDX-License-Identifier: Apache-2.0
"""Commands that speak to a running service, for scripts; the address and the token come from the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from veilwood.cli.options import read_number, read_params
from veilwood.errors import SetupError

__all__ = ["remote"]

remote = typer.Typer(help="Plan, run and predict on a running service.", rich_markup_mode=None)

Address = Annotated[str, typer.Option(envvar="VEILWOOD_SERVICE", help="Of the service: https://forest.example")]
Token = Annotated[str, typer.Option(envvar="VEILWOOD_TOKEN", help="Better given by the environment than typed.")]
Rows = Annotated[Path, typer.Argument(metavar="TABLE.csv")]
Price = Annotated[float | None, typer.Option(metavar="E", parser=read_number, help="Of the batch; else as signed.")]


def _client(address: str, token: str) -> Any:
    try:
        from veilwood.service.client import Client
    except ImportError as error:
        raise SetupError(f"the client needs {error.name}. Hint: pip install 'veilwood[service]'") from None
    return Client(address, token)


def _print(found: Any) -> None:
    print(json.dumps(found, indent=1))


def _read(table: Path) -> list[dict[str, Any]]:
    """Read the cells of a CSV file as they stand there; the service knows what they mean."""
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    return [{str(name): cell or None for name, cell in row.items()} for row in rows.to_dict("records")]


@remote.command("datasets")
def remote_datasets(address: Address, token: Token) -> None:
    """List the data sets and what is left of each.

    \b
    Example:
      VEILWOOD_SERVICE=http://127.0.0.1:8400 VEILWOOD_TOKEN=vw_... veilwood remote datasets
    """
    with _client(address, token) as client:
        _print(client.datasets())


@remote.command("plan")
def remote_plan(
    dataset: Annotated[str, typer.Argument(metavar="DATASET")],
    address: Address,
    token: Token,
    estimator: Annotated[str, typer.Option(metavar="NAME")] = "private-forest",
    epsilon: Annotated[float, typer.Option(metavar="E", parser=read_number)] = 1.0,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number)] = 0.0,
    param: Annotated[list[str] | None, typer.Option("--param", metavar="KEY=VALUE")] = None,
) -> None:
    """Plan a training; a custodian signs it before it runs.

    \b
    Example:
      veilwood remote plan visits --epsilon 0.5
    """
    with _client(address, token) as client:
        _print(client.plan(dataset, estimator, epsilon=epsilon, delta=delta, **read_params(param)))


@remote.command("sign")
def remote_sign(
    plan: Annotated[str, typer.Argument(metavar="PLAN")],
    fingerprint: Annotated[str, typer.Argument(metavar="HASH", help="As read on the plan.")],
    address: Address,
    token: Token,
) -> None:
    """Sign a plan by its hash.

    \b
    Example:
      veilwood remote sign 4be172456d3cc4b350373ded a32c347518d4...
    """
    with _client(address, token) as client:
        _print(client.sign(plan, fingerprint))


@remote.command("run")
def remote_run(plan: Annotated[str, typer.Argument(metavar="PLAN")], address: Address, token: Token) -> None:
    """Run a signed plan and wait until it is done.

    \b
    Example:
      veilwood remote run 4be172456d3cc4b350373ded
    """
    with _client(address, token) as client:
        _print(client.run(plan))


@remote.command("predict")
def remote_predict(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    table: Rows,
    address: Address,
    token: Token,
) -> None:
    """Predict for the rows of a CSV file; free.

    \b
    Example:
      veilwood remote predict 09c0c79330a9252dd58c31db new-visits.csv
    """
    with _client(address, token) as client:
        _print(client.predict(model, _read(table)))


@remote.command("quote")
def remote_quote(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    table: Rows,
    address: Address,
    token: Token,
    epsilon: Price = None,
) -> None:
    """Say what private answers to the rows of a CSV file would cost, and how far off they would be; free.

    \b
    Example:
      veilwood remote quote 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with _client(address, token) as client:
        _print(client.quote(model, _read(table), epsilon))


@remote.command("ask")
def remote_ask(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    table: Rows,
    address: Address,
    token: Token,
    epsilon: Price = None,
) -> None:
    """Ask for private answers to the rows of a CSV file. Charged first; the same batch again is free.

    \b
    Example:
      veilwood remote ask 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with _client(address, token) as client:
        _print(client.answer(model, _read(table), epsilon))


@remote.command("evaluate")
def remote_evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    address: Address,
    token: Token,
    epsilon: Annotated[float, typer.Option(metavar="E", parser=read_number)] = 0.1,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number)] = 0.0,
) -> None:
    """Plan how good a model is on the private rows; signed and run like a training.

    \b
    Example:
      veilwood remote evaluate 09c0c79330a9252dd58c31db --epsilon 0.1
    """
    with _client(address, token) as client:
        _print(client.plan_evaluation(model, epsilon=epsilon, delta=delta))


@remote.command("download")
def remote_download(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")],
    address: Address,
    token: Token,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX.")] = False,
) -> None:
    """Save a trained model, which veilwood predict and certificate read.

    \b
    Example:
      veilwood remote download 09c0c79330a9252dd58c31db -o visits.veilwood
    """
    with _client(address, token) as client:
        client.download(model, out, onnx=onnx)
    print(f"Wrote {out}")
