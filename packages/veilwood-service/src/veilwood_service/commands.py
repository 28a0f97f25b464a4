# SPDX-License-Identifier: Apache-2.0
"""Commands ``veilwood serve``, ``veilwood service`` and ``veilwood remote``, and the data of a demo service."""

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
from veilwood_service.budgets import dataset_ledger_name, open_guarded
from veilwood_service.jobs import execute_job
from veilwood_service.store import current_timestamp
from veilwood_service.training import RunRequest

remote = typer.Typer(help="Plan, run and predict on a running service.", rich_markup_mode=None)

ModelId = Annotated[str, typer.Argument(metavar="MODEL")]
CsvArgument = Annotated[Path, typer.Argument(metavar="TABLE.csv")]
BatchEpsilon = Annotated[
    float | None, typer.Option(metavar="E", parser=read_number, help="Epsilon of the batch. Default: the signed one.")
]


@dataclass(frozen=True)
class RemoteOptions:
    """Options of all ``veilwood remote`` commands: address of the service, and token."""

    address: Annotated[
        str, typer.Option(envvar="VEILWOOD_SERVICE", help="Address of the service, such as https://forest.example.")
    ]
    token: Annotated[str, typer.Option(envvar="VEILWOOD_TOKEN", help="Token. Prefer the environment variable.")]

    def open_client(self) -> Any:
        """Return a client of the service."""
        try:
            from veilwood_service.client import Client
        except ImportError as error:
            raise SetupError(f"the client needs {error.name}. Hint: pip install 'veilwood[service]'") from None
        return Client(self.address, self.token)


def _remote_command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a function with option groups as a ``veilwood remote`` command."""
    return lambda command: remote.command(name)(option_groups(command))


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def _read_rows(table: Path) -> list[dict[str, Any]]:
    """Read a CSV file as text. The service parses the values by the schema."""
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    return [{str(name): value or None for name, value in row.items()} for row in rows.to_dict("records")]


@_remote_command("datasets")
def remote_datasets(service: RemoteOptions) -> None:
    """List the data sets and their remaining budgets.

    \b
    Example:
      VEILWOOD_SERVICE=http://127.0.0.1:8400 VEILWOOD_TOKEN=vw_... veilwood remote datasets
    """
    with service.open_client() as client:
        _print_json(client.datasets())


@_remote_command("plan")
def remote_plan(
    dataset: Annotated[str, typer.Argument(metavar="DATASET")],
    service: RemoteOptions,
    estimator: Annotated[str, typer.Option(metavar="NAME")] = "private-forest",
    epsilon: Annotated[float, typer.Option(metavar="E", parser=read_number)] = 1.0,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number)] = 0.0,
    param: Annotated[list[str] | None, typer.Option("--param", metavar="KEY=VALUE")] = None,
) -> None:
    """Plan a training. A custodian must sign the plan before it runs.

    \b
    Example:
      veilwood remote plan visits --epsilon 0.5
    """
    with service.open_client() as client:
        _print_json(client.plan(dataset, estimator, epsilon=epsilon, delta=delta, **read_params(param)))


@_remote_command("sign")
def remote_sign(
    plan: Annotated[str, typer.Argument(metavar="PLAN")],
    fingerprint: Annotated[str, typer.Argument(metavar="HASH", help="Hash of the plan that you have read.")],
    service: RemoteOptions,
) -> None:
    """Sign a plan by its hash.

    \b
    Example:
      veilwood remote sign 4be172456d3cc4b350373ded a32c347518d4...
    """
    with service.open_client() as client:
        _print_json(client.sign(plan, fingerprint))


@_remote_command("run")
def remote_run(plan: Annotated[str, typer.Argument(metavar="PLAN")], service: RemoteOptions) -> None:
    """Run a signed plan and wait until it is done.

    \b
    Example:
      veilwood remote run 4be172456d3cc4b350373ded
    """
    with service.open_client() as client:
        _print_json(client.run(plan))


@_remote_command("predict")
def remote_predict(model: ModelId, table: CsvArgument, service: RemoteOptions) -> None:
    """Predict the rows of a CSV file. Free.

    \b
    Example:
      veilwood remote predict 09c0c79330a9252dd58c31db new-visits.csv
    """
    with service.open_client() as client:
        _print_json(client.predict(model, _read_rows(table)))


@_remote_command("quote")
def remote_quote(model: ModelId, table: CsvArgument, service: RemoteOptions, epsilon: BatchEpsilon = None) -> None:
    """Show the loss and the expected error of private answers to the rows of a CSV file. Free.

    \b
    Example:
      veilwood remote quote 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with service.open_client() as client:
        _print_json(client.quote(model, _read_rows(table), epsilon))


@_remote_command("ask")
def remote_ask(model: ModelId, table: CsvArgument, service: RemoteOptions, epsilon: BatchEpsilon = None) -> None:
    """Answer the rows of a CSV file privately. Charged first; repeating the same batch is free.

    \b
    Example:
      veilwood remote ask 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25
    """
    with service.open_client() as client:
        _print_json(client.answer(model, _read_rows(table), epsilon))


@_remote_command("evaluate")
def remote_evaluate(
    model: ModelId,
    service: RemoteOptions,
    epsilon: Annotated[float, typer.Option(metavar="E", parser=read_number)] = 0.1,
    delta: Annotated[float, typer.Option(metavar="D", parser=read_number)] = 0.0,
) -> None:
    """Plan an evaluation of a model on the private rows. It is signed and run like a training.

    \b
    Example:
      veilwood remote evaluate 09c0c79330a9252dd58c31db --epsilon 0.1
    """
    with service.open_client() as client:
        _print_json(client.plan_evaluation(model, epsilon=epsilon, delta=delta))


@_remote_command("download")
def remote_download(
    model: ModelId,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")],
    service: RemoteOptions,
    onnx: Annotated[bool, typer.Option("--onnx", help="Save as ONNX.")] = False,
) -> None:
    """Save a trained model to a file, for veilwood predict and veilwood certificate.

    \b
    Example:
      veilwood remote download 09c0c79330a9252dd58c31db -o visits.veilwood
    """
    with service.open_client() as client:
        client.download(model, out, onnx=onnx)
    print(f"Wrote {out}")


service_commands = typer.Typer(help="Back up, restore and freeze a service.", rich_markup_mode=None)


def serve(  # nosec B107: an empty client_secret means that no OpenID provider is configured
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of tables, models and ledgers.")] = Path(
        "veilwood-service"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8400,
    database: Annotated[
        str,
        typer.Option(envvar="VEILWOOD_DATABASE", help="Database, postgresql://... Default: SQLite in the folder."),
    ] = "",
    address: Annotated[
        str, typer.Option(help="Public address of the service, https://... Default: host and port.")
    ] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="Folder or postgresql://... from which custodians may register tables."),
    ] = None,
    issuer: Annotated[str, typer.Option(help="OpenID provider for logins, https://...")] = "",
    client_id: Annotated[str, typer.Option(help="Client id of this service at the provider.")] = "",
    client_secret: Annotated[
        str,
        typer.Option(envvar="VEILWOOD_CLIENT_SECRET", help="Client secret. Prefer the environment variable."),
    ] = "",
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a reverse proxy whose X-Forwarded headers are trusted. Default: 127.0.0.1.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Limit to change. docs/service.md lists them.")
    ] = None,
    certfile: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    keyfile: Annotated[Path | None, typer.Option(help="Private key of the TLS certificate, PEM.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Start with a public table and a model of it.")] = False,
) -> None:
    """Start the service: private training, predictions and queries over HTTP, with a web page.

    By default it uses SQLite, a local folder and one process. At the first start it prints a link that creates the
    first account. With --database, any number of processes and machines share PostgreSQL and a folder.

    \b
    Example:
      veilwood serve --demo
      veilwood serve
      veilwood serve /srv/veilwood --database postgresql://veilwood@db/veilwood --address https://forest.example
    """
    try:
        import uvicorn

        from veilwood_service.access import configure_logging
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
        limits=Limits.from_options(limit or ()),
    )
    configure_logging(log_level())
    _check_port(host, port)
    app = create_app(settings)
    service = app.state.service
    if demo:
        create_demo_data(service)
    print(f"Veilwood at {reached}")
    if service.has_no_accounts():
        print(f"First account: {reached}/page/index.html#invitation={service.accounts.create_invitation()}")
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
    """Raise SetupError if a port is in use, before the printed link would lead to another program."""
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(socket_address[:2], family=family).close()
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Hint: choose another port with --port."
        ) from None


@service_commands.command("backup")
def service_backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the service, which may be running.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar", help="New file.")],
) -> None:
    """Write database, models, tables and ledgers to one file. The file contains private rows.

    \b
    Example:
      veilwood service backup /srv/veilwood -o /backups/monday.tar
    """
    from veilwood_service.backup import back_up
    from veilwood_service.settings import Settings

    back_up(Settings(folder), out)
    print(f"Wrote {out}. It contains private rows: protect it like the tables.")


@service_commands.command("restore")
def service_restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar", help="Backup of a service.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder.")],
) -> None:
    """Restore a backup. Its ledgers are frozen until a custodian reconciles them.

    \b
    Example:
      veilwood service restore /backups/monday.tar /srv/veilwood
    """
    from veilwood_service.backup import restore_backup

    _print_frozen(restore_backup(archive, folder))


@service_commands.command("freeze")
def service_freeze(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the service.")],
    database: Annotated[
        str, typer.Option(envvar="VEILWOOD_DATABASE", help="Database, postgresql://... Default: SQLite.")
    ] = "",
) -> None:
    """Freeze all ledgers and end all tokens, after restoring the database with its own tools.

    \b
    Example:
      veilwood service freeze /srv/veilwood --database postgresql://veilwood@db/veilwood
    """
    from veilwood_service.backup import freeze_ledgers
    from veilwood_service.settings import Settings

    _print_frozen(freeze_ledgers(Settings(folder, database=database)))


def _print_frozen(names: list[str]) -> None:
    print(f"Frozen: {', '.join(names) or 'no ledgers'}. A custodian must reconcile each data set on its page.")


_DATASET_NAME: Final = "cars"
_POPULATION: Final = "makers of cars (a public table, for a first look)"
_DEMO_ACCOUNT: Final = "demo"


def create_demo_data(service: Service) -> None:
    """Add a public table and a model of it to a new service. Does nothing if a data set exists."""
    if service.database.find_all(store.datasets):
        return
    car = datasets.car()
    path = service.settings.tables_folder / f"{_DATASET_NAME}.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    path.chmod(0o600)
    open_guarded(service.settings, dataset_ledger_name(_DATASET_NAME), 5, 0, _POPULATION).write_checkpoint()
    schema = json.dumps(car.schema.to_dict())
    facts = {
        "name": _DATASET_NAME,
        "people": _POPULATION,
        "source": str(path),
        "schema": schema,
        "account": _DEMO_ACCOUNT,
    }
    service.database.add(store.datasets, **facts, created=current_timestamp())
    plan = service.plans.propose_training(_DEMO_ACCOUNT, _DATASET_NAME, RunRequest())
    plan = service.plans.sign_plan(_DEMO_ACCOUNT, plan["id"], plan["fingerprint"])
    job = service.jobs.add(_DEMO_ACCOUNT, plan, None)
    service.database.update(store.jobs, {"id": job["id"]}, state="running")
    execute_job(service.settings, service.database, service.jobs.get(job["id"]))
