# SPDX-License-Identifier: Apache-2.0
"""Commands that speak to a running service, for scripts; the address and the token come from the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from veilwood.cli.options import option_groups, read_number, read_params
from veilwood.errors import SetupError

__all__ = ["remote"]

remote = typer.Typer(help="Plan, run and predict on a running service.", rich_markup_mode=None)

ModelId = Annotated[str, typer.Argument(metavar="MODEL")]
CsvArgument = Annotated[Path, typer.Argument(metavar="TABLE.csv")]
Price = Annotated[float | None, typer.Option(metavar="E", parser=read_number, help="Of the batch; else as signed.")]


@dataclass(frozen=True)
class RemoteOptions:
    """A running service, and who asks it."""

    address: Annotated[str, typer.Option(envvar="VEILWOOD_SERVICE", help="Of the service: https://forest.example")]
    token: Annotated[str, typer.Option(envvar="VEILWOOD_TOKEN", help="Better given by the environment than typed.")]

    def client(self) -> Any:
        """Speak to it."""
        try:
            from veilwood.service.client import Client
        except ImportError as error:
            raise SetupError(f"the client needs {error.name}. Hint: pip install 'veilwood[service]'") from None
        return Client(self.address, self.token)


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function, with its groups of options."""
    return lambda command: remote.command(name)(option_groups(command))


def _print(found: Any) -> None:
    print(json.dumps(found, indent=1))


def _read(table: Path) -> list[dict[str, Any]]:
    """Read the cells of a CSV file as they stand there; the service knows what they mean."""
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    return [{str(name): cell or None for name, cell in row.items()} for row in rows.to_dict("records")]


@_command("datasets")
def remote_datasets(service: RemoteOptions) -> None:
    """List the data sets and what is left of each.

    \b
    Example:
      VEILWOOD_SERVICE=http://127.0.0.1:8400 VEILWOOD_TOKEN=vw_... veilwood remote datasets
    """
    with service.client() as client:
        _print(client.datasets())


@_command("plan")
def remote_plan(
    dataset: Annotated[str, typer.Argument(metavar="DATASET")],
    service: RemoteOptions,
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
    with service.client() as client:
        _print(client.plan(dataset, estimator, epsilon=epsilon, delta=delta, **read_params(param)))


@_command("sign")
def remote_sign(
    plan: Annotated[str, typer.Argument(metavar="PLAN")],
    fingerprint: Annotated[str, typer.Argument(metavar="HASH", help="As read on the plan.")],
    service: RemoteOptions,
) -> None:
    """Sign a plan by its hash.

    \b
    Example:
      veilwood remote sign 4be172456d3cc4b350373ded a32c347518d4...
    """
    with service.client() as client:
        _print(client.sign(plan, fingerprint))


@_command("run")
def remote_run(plan: Annotated[str, typer.Argument(metavar="PLAN")], service: RemoteOptions) -> None:
    """Run a signed plan and wait until it is done.

    \b
    Example:
      veilwood remote run 4be172456d3cc4b350373ded
    """
    with service.client() as client:
        _print(client.run(plan))


@_command("predict")
def remote_predict(model: ModelId, table: CsvArgument, service: RemoteOptions) -> None:
    """Predict for the rows of a CSV file; free.

    \b
    Example:
      veilwood remote predict 09c0c79330a9252dd58c31db new-visits.csv
    """
    with service.client() as client:
        _print(client.predict(model, _read(table)))


@_command("quote")
def remote_quote(model: ModelId, table: CsvArgument, service: RemoteOptions, epsilon: Price = None) -> None:
    """Say what private answers to the rows of a CSV file would cost, and how far off they would be; free.

    \b
    Example:
      veilwood remote quote 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with service.client() as client:
        _print(client.quote(model, _read(table), epsilon))


@_command("ask")
def remote_ask(model: ModelId, table: CsvArgument, service: RemoteOptions, epsilon: Price = None) -> None:
    """Ask for private answers to the rows of a CSV file. Charged first; the same batch again is free.

    \b
    Example:
      veilwood remote ask 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with service.client() as client:
        _print(client.answer(model, _read(table), epsilon))


@_command("evaluate")
def remote_evaluate(
    model: ModelId,
    service: RemoteOptions,
    epsilon: Annotated[float, typer.Option(metavar="E", parser=read_number)] = 0.1,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number)] = 0.0,
) -> None:
    """Plan how good a model is on the private rows; signed and run like a training.

    \b
    Example:
      veilwood remote evaluate 09c0c79330a9252dd58c31db --epsilon 0.1
    """
    with service.client() as client:
        _print(client.plan_evaluation(model, epsilon=epsilon, delta=delta))


@_command("download")
def remote_download(
    model: ModelId,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")],
    service: RemoteOptions,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX.")] = False,
) -> None:
    """Save a trained model, which veilwood predict and certificate read.

    \b
    Example:
      veilwood remote download 09c0c79330a9252dd58c31db -o visits.veilwood
    """
    with service.client() as client:
        client.download(model, out, onnx=onnx)
    print(f"Wrote {out}")
