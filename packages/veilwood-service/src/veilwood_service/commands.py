# SPDX-License-Identifier: Apache-2.0
"""The command that starts the service; what it does is in ``service``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import pandas as pd
import typer

from veilwood import datasets
from veilwood.cli.options import log_level, option_groups, read_number, read_params
from veilwood.errors import SetupError
from veilwood_service import store
from veilwood_service.access import Service
from veilwood_service.budgets import book_of, dataset_ledger
from veilwood_service.jobs import carry_out
from veilwood_service.store import now
from veilwood_service.training import AskedRun

__all__ = ["prepare", "remote", "serve", "service_commands"]


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
            from veilwood_service.client import Client
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


service_commands = typer.Typer(help="Copy a service, and bring it back.", rich_markup_mode=None)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where tables, models and ledgers are.")] = Path(
        "veilwood-service"
    ),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8400,
    database: Annotated[
        str, typer.Option(envvar="VEILWOOD_DATABASE", help="postgresql://...; else SQLite in the folder.")
    ] = "",
    address: Annotated[str, typer.Option(help="How people reach it, if by a proxy: https://...")] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="Custodians may register tables from this folder or postgresql://..."),
    ] = None,
    issuer: Annotated[str, typer.Option(help="An OpenID provider whom people log in with: https://...")] = "",
    client_id: Annotated[str, typer.Option(help="What the provider calls this service.")] = "",
    client_secret: Annotated[str, typer.Option(envvar="VEILWOOD_CLIENT_SECRET", help="Given by the environment.")] = "",
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A proxy in front, whose word on where people come from is believed."),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Another limit; docs/service.md lists them.")
    ] = None,
    certfile: Annotated[Path | None, typer.Option(help="A TLS certificate, in PEM.")] = None,
    keyfile: Annotated[Path | None, typer.Option(help="Its key, in PEM.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Start with a public table and a model of it.")] = False,
) -> None:
    """Start the service: private answers, training and budgets over HTTP, with a page.

    In one command: SQLite, a local folder, one process. The first time it prints a link by which the first account is
    made. With --database, any number of processes and machines share PostgreSQL and a folder.

    \b
    Example:
      veilwood serve --demo
      veilwood serve
      veilwood serve /srv/veilwood --database postgresql://veilwood@db/veilwood --address https://forest.example
    """
    try:
        import uvicorn

        from veilwood_service.access import log_to_standard_error
        from veilwood_service.app import create_app
        from veilwood_service.settings import Limits, Settings
    except ImportError as error:
        raise SetupError(f"the service needs {error.name}. Hint: pip install 'veilwood[service]'") from None
    scheme = "https" if certfile else "http"
    reached = address or f"{scheme}://{host}:{port}"
    allowed = tuple(allow or ())
    settings = Settings(
        folder,
        database=database,
        address=reached,
        allowed=allowed,
        issuer=issuer,
        client_id=client_id,
        client_secret=client_secret,
        limits=Limits.named(limit or ()),
    )
    log_to_standard_error(log_level())
    _check_port(host, port)
    app = create_app(settings)
    service = app.state.service
    if demo:
        prepare(service)
    print(f"Veilwood at {reached}")
    if service.is_new():
        print(f"First account: {reached}/page/index.html#invitation={service.accounts.invite()}")
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=list(proxy or ["127.0.0.1"]),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        timeout_graceful_shutdown=10,
    )


def _check_port(host: str, port: int) -> None:
    """Refuse a port that is taken, before a link is printed that leads to whoever has it."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(place[:2], family=family).close()
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Hint: --port takes another."
        ) from None


@service_commands.command("backup")
def service_backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of the service, which may run.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar")],
) -> None:
    """Copy records, models, tables and ledgers into one file. It holds private rows.

    \b
    Example:
      veilwood service backup /srv/veilwood -o /backups/monday.tar
    """
    from veilwood_service.backup import back_up
    from veilwood_service.settings import Settings

    back_up(Settings(folder), out)
    print(f"Wrote {out}, which holds private rows: keep it as you keep the tables.")


@service_commands.command("restore")
def service_restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
) -> None:
    """Bring a copy back. Its ledgers are frozen until a custodian reconciles them.

    \b
    Example:
      veilwood service restore /backups/monday.tar /srv/veilwood
    """
    from veilwood_service.backup import restore

    _print_frozen(restore(archive, folder))


@service_commands.command("freeze")
def service_freeze(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of the service.")],
    database: Annotated[str, typer.Option(envvar="VEILWOOD_DATABASE", help="postgresql://...; else SQLite.")] = "",
) -> None:
    """Freeze all ledgers and end all tokens, after the database was restored by its own tools.

    \b
    Example:
      veilwood service freeze /srv/veilwood --database postgresql://veilwood@db/veilwood
    """
    from veilwood_service.backup import freeze
    from veilwood_service.settings import Settings

    _print_frozen(freeze(Settings(folder, database=database)))


def _print_frozen(names: list[str]) -> None:
    print(f"Frozen: {', '.join(names) or 'nothing'}. A custodian reconciles each data set, on its page.")


_NAME: Final = "cars"
_PEOPLE: Final = "makers of cars (a public table, for a first look)"
_WHO: Final = "demo"


def prepare(service: Service) -> None:
    """Fill a new service; one that has a data set is left as it is."""
    if service.records.every(store.datasets):
        return
    car = datasets.car()
    path = service.settings.tables / f"{_NAME}.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    path.chmod(0o600)
    book_of(service.settings, dataset_ledger(_NAME), 5, 0, _PEOPLE).note()
    schema = json.dumps(car.schema.to_dict())
    facts = {"name": _NAME, "people": _PEOPLE, "source": str(path), "schema": schema, "account": _WHO}
    service.records.add(store.datasets, **facts, created=now())
    plan = service.plans.propose_training(_WHO, _NAME, AskedRun())
    plan = service.plans.sign(_WHO, plan["id"], plan["fingerprint"])
    job = service.jobs.add(_WHO, plan, None)
    service.records.change(store.jobs, {"id": job["id"]}, state="running")
    carry_out(service.settings, service.records, service.jobs.get(job["id"]))
