# SPDX-License-Identifier: Apache-2.0
"""The command that starts the service; what it does is in ``service``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.options import log_level
from veilwood.errors import SetupError

__all__ = ["serve", "service_commands"]

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

        from veilwood.service.app import create_app
        from veilwood.service.logs import log_to_standard_error
        from veilwood.service.settings import Limits, Settings
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
        from veilwood.service.demo import prepare

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
    from veilwood.service.backup import back_up
    from veilwood.service.settings import Settings

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
    from veilwood.service.backup import restore

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
    from veilwood.service.backup import freeze
    from veilwood.service.settings import Settings

    _print_frozen(freeze(Settings(folder, database=database)))


def _print_frozen(names: list[str]) -> None:
    print(f"Frozen: {', '.join(names) or 'nothing'}. A custodian reconciles each data set, on its page.")
