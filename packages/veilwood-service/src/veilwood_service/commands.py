# SPDX-License-Identifier: Apache-2.0
"""Commands ``veilwood serve``, ``veilwood service`` and ``veilwood remote``, and the data of a demo service."""

from __future__ import annotations

import json
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pandas as pd
import typer

from veilwood.cli.options import log_level, option_groups, read_number, read_params
from veilwood.errors import ParameterError, SetupError
from veilwood_service.client import Client

if TYPE_CHECKING:
    from veilwood_service.access import Service
    from veilwood_service.settings import Settings

remote = typer.Typer(help="Work with a running service: data, plans, models, accounts.", rich_markup_mode=None)

Address = Annotated[
    str, typer.Option(envvar="VEILWOOD_SERVICE", help="Address of the service, such as https://forest.example.")
]
Password = Annotated[
    str | None, typer.Option(envvar="VEILWOOD_PASSWORD", help="Password of the account. Default: prompt for it.")
]
DatasetName = Annotated[str, typer.Argument(metavar="DATASET")]


@dataclass(frozen=True)
class TokenOptions:
    """Options of commands that a token may run: address of the service, and token."""

    address: Address
    token: Annotated[str, typer.Option(envvar="VEILWOOD_TOKEN", help="Token. Prefer the environment variable.")]

    def open_client(self) -> Client:
        """Return a client of the service."""
        return Client(self.address, self.token)


@dataclass(frozen=True)
class LoginOptions:
    """Options of commands that need a session: address of the service, account and password."""

    address: Address
    account: Annotated[str, typer.Option(envvar="VEILWOOD_ACCOUNT", help="Your account.")]
    password: Password = None

    def open_client(self) -> Client:
        """Return a client with a session."""
        client = Client(self.address)
        client.log_in(self.account, self.password or typer.prompt("Password", hide_input=True))
        return client


def _read_rows(table: Path) -> list[dict[str, Any]]:
    """Read a CSV file as text. The service parses the values according to the schema."""
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    return [{str(name): value or None for name, value in row.items()} for row in rows.to_dict("records")]


def _read_json_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ParameterError("file", path.name, f"is not JSON ({type(error).__name__})", "pass a JSON file") from None


_ARGUMENTS: Final[dict[str, tuple[type, str]]] = {
    "dataset": (str, "Name of a data set."), "plan": (str, "Id of a plan."), "model": (str, "Id of a model."),
    "job": (str, "Id of a job."), "name": (str, "Name of the account, the data set or the new token."),
    "token": (str, "Id of a token."), "allowance": (str, "Id of an allowance."),
    "entry": (int, "Number of a ledger entry."), "fingerprint": (str, "Hash of the plan that you have read."),
    "table": (str, "A .csv or .parquet file, or - for CSV from a pipe."), "rows": (Path, "A CSV file of public rows."),
    "schema": (Path, "Reviewed schema, JSON."), "certificates": (list[Path], "Certificates, JSON."),
}  # fmt: skip
"""Parameters of the client's methods that are arguments of a command, with type and help."""
_OPTIONS: Final[dict[str, tuple[Any, str]]] = {
    "roles": (list[str], "Role; can be repeated. For an invitation, omit it if the account exists."),
    "disabled": (bool | None, "Disable or enable the account."),
    "name": (str, "Name of the model."), "note": (str | None, "Note on the model, such as its purpose."),
    "subject": (str | None, "Identity at the OpenID provider, instead of a link."),
    "scopes": (list[str], "Right: ask, plan, run, sign, data, records, accounts, operate; can be repeated."),
    "days": (int, "Days until the token expires."), "limit": (int, "Maximum number of records."),
    "people": (str, "The protected population."), "source": (str | None, "Path in a folder that the operator allows."),
    "epsilon": (float | None, "Epsilon, such as 0.5 or 1/3."), "delta": (float, "Delta."),
    "account": (str, "Account to limit. Default: all accounts together."), "period": (str, "Renewal: year or month."),
    "target": (str | None, "Target column. Default: the last column."), "reason": (str, "Reason, which is recorded."),
    "missing_epsilon": (str, "Epsilon of all releases without a certificate, or 0."),
    "estimator": (str, "Name of an estimator."),
    "more": (list[str], "KEY=VALUE, a parameter of the estimator; can be repeated."),
    "runs": (int, "Number of runs that you allow."), "wait_seconds": (float, "Seconds to wait for the end."),
    "total_epsilon": (float | None, "Epsilon that you allow for all batches of a predictor."),
    "askers": (list[str], "Account that may query a predictor, or * for all; can be repeated. Default: the planner."),
    "path": (Path, "Output file."), "onnx": (bool, "Save as ONNX."),
}  # fmt: skip
"""Parameters that are options, with type and help."""
_FLAGS: Final = {"roles": "--role", "scopes": "--scope", "more": "--param", "askers": "--asker", "path": "--out -o",
                 "disabled": "--disabled/--enabled"}  # fmt: skip
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "rows": _read_rows,
    "schema": _read_json_file,
    "certificates": lambda paths: [_read_json_file(path) for path in paths],
    "table": lambda table: sys.stdin.buffer if table == "-" else table,
    "askers": lambda names: names or None,
}


def _cli_parameter(parameter: Parameter) -> Parameter:
    """Return the argument or option of a command for a parameter of a method."""
    name, default = parameter.name, parameter.default
    if name in _ARGUMENTS and default is Parameter.empty:
        kind, text = _ARGUMENTS[name]
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, typer.Argument(help=text)])
    kind, text = _OPTIONS[name]
    parser = read_number if kind in (float, float | None) else None
    flags = _FLAGS.get(name, f"--{name.replace('_', '-')}").split()
    option = typer.Option(*flags, help=text, parser=parser)
    if parameter.kind is Parameter.VAR_KEYWORD or default in ((), None):
        default = [] if kind == list[str] else None
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default)


def _add_remote_command(
    name: str, method: Callable[..., Any], example: str, options: type = TokenOptions, end: str = ""
) -> None:
    """Add a command that calls a method of the client, and prints its result, or ``end`` if there is none."""
    parameters = [*signature(method, eval_str=True).parameters.values()][1:]

    def run_command(service: Any, **given: Any) -> None:
        values = {key: _READERS.get(key, lambda value: value)(value) for key, value in given.items()}
        values |= read_params(values.pop("more", None))
        with service.open_client() as client:
            result = method(client, **values)
        if isinstance(result, str):
            print(result)
        else:
            print(end if result is None else json.dumps(result, indent=1))

    options_parameter = Parameter("service", Parameter.KEYWORD_ONLY, annotation=options)
    cli_parameters = [_cli_parameter(each) for each in parameters if each.name != "media_type"]
    run_command.__signature__ = Signature([options_parameter, *cli_parameters])  # type: ignore[attr-defined]
    summary = (method.__doc__ or "").split("\n\n")[0]
    run_command.__doc__ = f"{summary}\n\n\b\nExample:\n  veilwood remote {example}"
    remote.command(name)(option_groups(run_command))


_LOG_IN: Final = "--account ana"
_add_remote_command("invite", Client.invite, f"invite eve --role analyst {_LOG_IN}", LoginOptions, "Added")
_add_remote_command("accounts", Client.accounts, f"accounts {_LOG_IN}", LoginOptions)
_add_remote_command("change", Client.change_account, f"change eve --disabled {_LOG_IN}", LoginOptions, "Changed")
_add_remote_command("tokens", Client.tokens, f"tokens {_LOG_IN}", LoginOptions)
_add_remote_command("revoke", Client.revoke, f"revoke 09c0c79330a9252dd58c31db {_LOG_IN}", LoginOptions, "Revoked")
_add_remote_command("token", Client.issue_token, f"token nightly --scope plan --scope run {_LOG_IN}", LoginOptions)
_add_remote_command("events", Client.events, "events --limit 20")
_add_remote_command("datasets", Client.datasets, "datasets")
_add_remote_command("register", Client.add_dataset, 'register visits --people "patients of clinic X" --epsilon 3')
_add_remote_command("upload", Client.upload, "upload visits visits.csv", end="Stored")
_add_remote_command("schema", Client.schema, "schema visits")
_add_remote_command("draft", Client.draft, "draft visits > visits.json")
_add_remote_command("declare", Client.set_schema, "declare visits visits.json", end="Declared")
_add_remote_command("allow", Client.add_allowance, "allow visits --epsilon 0.5 --account ana --period year")
_add_remote_command("allowances", Client.allowances, "allowances visits")
_add_remote_command("disallow", Client.remove_allowance, "disallow visits 4be172456d3cc4b350373ded", end="Removed")
_add_remote_command("ledger", Client.ledger, "ledger visits")
_add_remote_command("verify", Client.verify_ledger, "verify visits")
_add_remote_command("certificates", Client.charge_certificates, "certificates visits june.json july.json")
_add_remote_command("thaw", Client.thaw, 'thaw visits --reason "the disk broke" --missing-epsilon 0.5')
_add_remote_command("resolve", Client.resolve, 'resolve visits 12 --reason "power failure on May 3"')
_add_remote_command("delete-table", Client.delete_table, "delete-table visits", end="Deleted")
_add_remote_command("retire", Client.retire, 'retire visits --reason "the study has ended"')
_add_remote_command("estimators", Client.estimators, "estimators")
_add_remote_command("plan", Client.plan, "plan visits --epsilon 0.5")
_add_remote_command("plans", Client.plans, "plans")
_add_remote_command("sign", Client.sign, "sign 4be172456d3cc4b350373ded a32c347518d4... --runs 2")
_add_remote_command("run", Client.run, "run 4be172456d3cc4b350373ded")
_add_remote_command("jobs", Client.jobs, "jobs")
_add_remote_command("cancel", Client.cancel, "cancel 09c0c79330a9252dd58c31db")
_add_remote_command("models", Client.models, "models")
_add_remote_command("rename", Client.rename, 'rename 09c0c79330a9252dd58c31db "Visits, spring" --note "for the board"')
_add_remote_command("evaluations", Client.evaluations, "evaluations 09c0c79330a9252dd58c31db")
_add_remote_command("predict", Client.predict, "predict 09c0c79330a9252dd58c31db new-visits.csv")
_add_remote_command("quote", Client.quote, "quote 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25")
_add_remote_command("ask", Client.answer, "ask 09c0c79330a9252dd58c31db questions.csv --epsilon 0.25")
_add_remote_command("evaluate", Client.plan_evaluation, "evaluate 09c0c79330a9252dd58c31db --epsilon 0.1")
_add_remote_command("download", Client.download, "download 09c0c79330a9252dd58c31db -o visits.veilwood", end="Wrote")


@remote.command("accept")
def remote_accept(
    invitation: Annotated[str, typer.Argument(metavar="INVITATION", help="The link that an operator sent.")],
    address: Address,
    name: Annotated[str | None, typer.Option(help="Name of the first account.")] = None,
    password: Password = None,
) -> None:
    """Set the password of your account with an invitation.

    \b
    Example:
      veilwood remote accept vw_... --address https://forest.example
    """
    typed = password or typer.prompt("New password", hide_input=True, confirmation_prompt=True)
    with Client(address) as client:
        client.accept(invitation, typed, name)
    print("The password is set.")


# -- the machine of the service --------------------------------------------------------------------------------------

service_commands = typer.Typer(help="Back up, restore and repair a service on its machine.", rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the service.")]
Database = Annotated[
    str, typer.Option(envvar="VEILWOOD_DATABASE", help="Database, postgresql://... Default: SQLite in the folder.")
]


def serve(  # nosec B107: an empty client_secret means that no OpenID provider is configured
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of tables and database.")] = Path(
        "veilwood-service"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8400,
    database: Database = "",
    address: Annotated[
        str, typer.Option(help="Public address of the service, https://... Default: host and port.")
    ] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Folder from which custodians may register tables."),
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
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="NAME=NUMBER, a limit to change; can be repeated. docs/service.md lists all limits.",
        ),
    ] = None,
    certfile: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    keyfile: Annotated[Path | None, typer.Option(help="Private key of the TLS certificate, PEM.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Start with a public table and a model trained on it.")] = False,
) -> None:
    """Start the service: private training, predictions and queries over HTTP, with a web page.

    By default it uses SQLite, a local folder and one process. At the first start it prints a link that creates the
    first account. With --database, any number of processes and machines share PostgreSQL and a folder.

    \b
    Example:
      veilwood serve --demo
      veilwood serve /srv/veilwood
      veilwood serve /srv/veilwood --database postgresql://veilwood@db/veilwood --address https://forest.example
    """
    print("Starting ...", file=sys.stderr)
    try:
        import uvicorn

        from veilwood_service.access import configure_logging
        from veilwood_service.app import HeaderTimeoutProtocol, create_app
        from veilwood_service.settings import Limits, Settings
    except ImportError as error:
        raise SetupError(f"the service needs {error.name}. Hint: run pip install 'veilwood[service]'") from None
    scheme = "https" if certfile else "http"
    is_everywhere = host.strip("0:.") == ""  # 0.0.0.0 and ::, to which no browser can connect
    reached = address or f"{scheme}://{'127.0.0.1' if is_everywhere else host}:{port}"
    for each in proxy or ():
        _check_proxy(each)
    if host not in ("127.0.0.1", "::1", "localhost") and not reached.startswith("https://"):
        warning = "Warning: other machines can connect, and passwords and tokens travel unencrypted without TLS."
        print(f"{warning} Hint: pass --certfile, or --address https://... behind a proxy.", file=sys.stderr)
    settings = Settings(
        folder,
        database=database,
        address=reached,
        allowed=tuple(allow or ()),
        issuer=issuer,
        client_id=client_id,
        client_secret=client_secret,
        limits=Limits.from_options(limit or ()),
    )
    configure_logging(log_level())
    _check_port(host, port)
    _raise_file_limit()
    app = create_app(settings)
    service = app.state.service
    link = ""
    if demo:
        create_demo_data(service)
        link = f"Open the demonstration: {reached}/page/index.html#demo={service.accounts.set_random_password('demo')}"
    elif service.has_no_accounts():
        link = f"First account: {reached}/page/index.html#first={service.accounts.invite_first()}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:  # the link works from the moment it is printed
                print(f"Veilwood at {reached}", *([link] if link else []), sep="\n", flush=True)

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=HeaderTimeoutProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=list(proxy or ["127.0.0.1"]),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=10,
    )
    with suppress(KeyboardInterrupt):  # raised again once everything has stopped
        Server(config).run()


_MIN_PROXY_PREFIX: Final = 8  # bits: of 10.0.0.0/8, the largest private network
_MAX_CONNECTIONS: Final = 4000  # further connections get status 503


def _check_port(host: str, port: int) -> None:
    """Raise SetupError if a port is in use, before the printed link would lead to another program."""
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(socket_address[:2], family=family).close()
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Hint: choose another port with --port."
        ) from None


def _check_proxy(address: str) -> None:
    """Raise ParameterError unless an address, or a small network of addresses, can be that of a trusted proxy."""
    try:
        is_own = ip_network(address).prefixlen >= _MIN_PROXY_PREFIX
    except ValueError:  # a host name, which would never match, or "*"
        is_own = False
    if not is_own:
        hint = "pass the proxy's address, such as 10.0.0.2"
        raise ParameterError("proxy", address, "would let clients forge their addresses, or is not an address", hint)


def _raise_file_limit() -> None:
    """Allow as many open files as the system grants: each connection is one."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _read_settings(folder: Path, database: str = "") -> Settings:
    from veilwood_service.settings import Settings

    return Settings(folder, database=database)


@service_commands.command("backup")
def service_backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the service, which may be running.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar", help="New file.")],
    database: Database = "",
) -> None:
    """Write the database and the tables to one file. The file contains private rows.

    With PostgreSQL, the file contains the tables only; save the database with pg_dump.

    \b
    Example:
      veilwood service backup /srv/veilwood -o /backups/monday.tar
    """
    from veilwood_service.backup import back_up

    back_up(_read_settings(folder, database), out)
    print(f"Wrote {out}. It contains private rows: protect it like the tables.")


@service_commands.command("restore")
def service_restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar", help="Backup of a service.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder.")],
    database: Database = "",
) -> None:
    """Restore a backup. Its ledgers are frozen until a custodian thaws them.

    With PostgreSQL, restore the database first, with pg_restore.

    \b
    Example:
      veilwood service restore /backups/monday.tar /srv/veilwood
    """
    from veilwood_service.backup import restore_backup

    _print_frozen(restore_backup(archive, _read_settings(folder, database)))


@service_commands.command("freeze")
def service_freeze(folder: Folder, database: Database = "") -> None:
    """Freeze all ledgers and end all tokens, after restoring the database with its own tools.

    \b
    Example:
      veilwood service freeze /srv/veilwood --database postgresql://veilwood@db/veilwood
    """
    from veilwood_service.backup import freeze_ledgers

    _print_frozen(freeze_ledgers(_read_settings(folder, database)))


def _print_frozen(names: list[str]) -> None:
    print(f"Frozen: {', '.join(names) or 'no ledgers'}. A custodian can thaw each data set.")


@service_commands.command("invite")
def service_invite(
    folder: Folder,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a new account, or of an account whose password is lost.")
    ],
    role: Annotated[list[str] | None, typer.Option(help="Role of a new account. Default: operator.")] = None,
    address: Annotated[str, typer.Option(help="Public address of the service.")] = "http://127.0.0.1:8400",
    database: Database = "",
) -> None:
    """Print an invitation link: the way back in if no operator can log in.

    If the account exists but is disabled, it is enabled again.

    \b
    Example:
      veilwood service invite /srv/veilwood olga --address https://forest.example
    """
    from veilwood_service import store
    from veilwood_service.accounts import Accounts

    records = store.Store(_read_settings(folder, database))
    records.create_tables()
    is_new = records.find(store.accounts, name=name) is None
    with records.transaction():
        invitation = Accounts(records).invite("(machine)", name, (role or ["operator"]) if is_new else None)
        records.update(store.accounts, {"name": name}, disabled=0)
    print(f"{address.rstrip('/')}/page/index.html#invitation={invitation}")


@service_commands.command("adopt-ledger")
def service_adopt_ledger(
    folder: Folder,
    dataset: DatasetName,
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="File or postgresql://host/database#name.")],
    people: Annotated[str, typer.Option(metavar="TEXT", help="The protected population.")],
    database: Database = "",
) -> None:
    """Register a data set whose earlier charges are in a ledger of the library. These charges continue to count.

    \b
    Example:
      veilwood service adopt-ledger /srv/veilwood visits visits.db --people "patients of clinic X"
    """
    from veilwood.privacy.ledger_stores import open_ledger
    from veilwood_service.access import Service
    from veilwood_service.routes_data import register_dataset

    budget = open_ledger(ledger).budget
    if budget is None:
        raise ParameterError("ledger", ledger, "has no budget", "adopt a ledger that was created with an epsilon")
    service = Service.open(_read_settings(folder, database))
    epsilon, delta = str(budget.epsilon), str(budget.delta)
    register_dataset(service, "(machine)", dataset, people, epsilon, delta, existing_ledger=ledger)
    print(f"Registered {dataset}, with {service.ledgers.open(dataset).spent} spent of {budget}")


@service_commands.command("verify")
def service_verify(folder: Folder, database: Database = "") -> None:
    """Verify the hash chains of all ledgers, and print the last hash of each.

    \b
    Example:
      veilwood service verify /srv/veilwood
    """
    from veilwood_service import store
    from veilwood_service.budgets import Ledgers

    settings = _read_settings(folder, database)
    records = store.Store(settings)
    for dataset in records.find_all(store.datasets):
        print(f"{dataset['name']}: {Ledgers(settings, records).open(dataset['name']).verify()}")


_DEMO_DATASET: Final = "cars"
_DEMO_POPULATION: Final = "makers of cars (a public table, for a first look)"
_DEMO_ACCOUNT: Final = "demo"


def create_demo_data(service: Service) -> None:
    """Add an account, a public table, a model and its evaluation to a new service. Do nothing if a data set exists."""
    from veilwood import datasets
    from veilwood_service import store
    from veilwood_service.accounts import ROLES
    from veilwood_service.jobs import execute_job
    from veilwood_service.routes_data import register_dataset
    from veilwood_service.training import Grant, RunRequest

    if service.database.find_all(store.datasets):
        return
    car, path = datasets.car(), service.settings.tables_folder / f"{_DEMO_DATASET}.csv"
    car.X.assign(**{car.schema.target.name: car.y}).to_csv(path, index=False)
    path.chmod(0o600)
    service.accounts.invite(_DEMO_ACCOUNT, _DEMO_ACCOUNT, ROLES)
    register_dataset(service, _DEMO_ACCOUNT, _DEMO_DATASET, _DEMO_POPULATION, 5, source=str(path))
    service.database.update(store.datasets, {"name": _DEMO_DATASET}, schema=json.dumps(car.schema.to_dict()))

    def run_plan(plan: Any) -> str:
        signed = service.plans.sign_plan(_DEMO_ACCOUNT, plan["id"], plan["fingerprint"], Grant())
        job = service.jobs.add(_DEMO_ACCOUNT, signed, None)
        leased = service.jobs.lease_next()
        assert leased is not None
        with warnings.catch_warnings():  # as in a worker
            warnings.simplefilter("ignore")
            execute_job(service.database, service.ledgers, leased)
        return str(job["id"])

    note = "Trained at the start of the demonstration. Its predictions spend no budget."
    request = RunRequest(epsilon=1.0, name="First look at cars", note=note)
    model = run_plan(service.plans.propose_training(_DEMO_ACCOUNT, _DEMO_DATASET, request))
    run_plan(service.plans.propose_evaluation(_DEMO_ACCOUNT, model, RunRequest("", 0.5)))
