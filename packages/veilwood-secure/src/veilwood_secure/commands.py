# SPDX-License-Identifier: Apache-2.0
"""The command line of secure training: set up, and run as a server, an owner of rows, or a user.

Nothing is computed here; what the roles do is in ``secure``.
"""

from __future__ import annotations

import importlib.util
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.cli.options import AsJson, Force, check_output, log_level, print_result, read_params
from veilwood.data.schema import Schema
from veilwood.errors import SetupError, UseError
from veilwood_secure import MISSING_EXTRA_MESSAGE

__all__ = ["secure"]

secure = typer.Typer(
    help="Train on rows of several owners that three servers never see. Start with: veilwood secure demo",
    rich_markup_mode=None,
)


@secure.callback()
def _require_extra() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise SetupError(MISSING_EXTRA_MESSAGE)


RoleFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of this role, made by setup.")]
TaskName = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Which task, where there are several.")]


@secure.command()
def setup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the folders of all roles go.")],
    schema: Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="The schema, a JSON file.")],
    owner: Annotated[
        list[str],
        typer.Option("--owner", metavar="NAME[=COL,COL]", help="An owner of rows, or of columns; repeat for each."),
    ],
    user: Annotated[list[str], typer.Option("--user", metavar="NAME", help="Who may ask; may be repeated.")],
    epsilon: Annotated[str, typer.Option("--epsilon", metavar="E", help="Privacy loss of training.")] = "1",
    name: Annotated[str | None, typer.Option("--name", help="Of the task; by default, that of the schema.")] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="Of servers 0, 1, 2, in order; three times.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="The first port; each server uses two.")] = 7100,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS", help="Where servers listen, if not on their host.")
    ] = None,
    protocol: Annotated[str, typer.Option("--protocol", help="How the model is trained.")] = "hidden-tree",
    setting: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="A setting of the protocol.")
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long certificates are valid.")] = 365,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds after which a silent party is lost.")] = 60.0,
    keys: Annotated[
        bool, typer.Option("--keys/--no-keys", help="Draw all keys here; without, each role requests a certificate.")
    ] = True,
) -> None:
    """Make keys, certificates and one configuration for each role; run again with --name to add a task.

    \b
    Example:
      veilwood secure setup clinics --schema heart.json --epsilon 1 \\
        --owner north --owner south --user analyst \\
        --host a.example --host b.example --host c.example
    """
    from veilwood_secure.roles.config import Address, Task, default_task_name, set_up_roles
    from veilwood_secure.roles.registry import program_for_task

    hosts = host or ["127.0.0.1"] * 3
    if len(hosts) != 3:
        raise UseError(f"--host was given {len(hosts)} times. Hint: once for each of the three servers.")
    public = Schema.load(schema)
    owners = {word.partition("=")[0]: word.partition("=")[2].split(",") if "=" in word else None for word in owner}
    task = Task(
        name or default_task_name(public),
        public.to_dict(),
        epsilon,
        owners,
        tuple(user),
        protocol,
        read_params(setting),
    )
    plan = program_for_task(task).plan
    # Two servers on one host need different ports.
    addresses = [Address(place, port + 2 * party, port + 2 * party + 1) for party, place in enumerate(hosts)]
    made = set_up_roles(
        folder,
        task,
        addresses=addresses,
        listen=[listen] * 3 if listen else None,
        timeout=timeout,
        days=days,
        keys=keys,
    )
    print(f"Task {task.name}: {plan.loss}. Folders in {folder}:")
    for config in made:
        print(f"  {config.folder.name:<20} for {config.party_name}")
    if not keys:
        print("Hand each role its folder; it runs: veilwood secure request FOLDER, and sends you request.pem to sign.")
        return
    print(f"Hand each new role its folder and, by another way, its secret from {folder / 'secrets'}; a role that was")
    print("there before needs its new config.json only. Then delete the secrets and every key.pem here.")
    print(f"Keep {folder / 'authorities'} and its secrets offline: whoever has them can add parties.")


@secure.command()
def request(folder: RoleFolder) -> None:
    """Draw a key for this role, here and nowhere else, and write a request for a certificate.

    Also for renewal: the certificate in use stays so until the new one is installed.

    \b
    Example:
      veilwood secure request clinics/owner-north
    """
    from veilwood_secure.roles.config import Config
    from veilwood_secure.roles.identity import REQUEST_FILE, request_certificate

    config = Config.load(folder)
    known = (folder / "key.pem").exists() or (folder / "secret").exists()
    request_certificate(folder, config.party_name, config.identity.secret if known else None)
    print(
        f"Send {folder / REQUEST_FILE} to whoever keeps the authorities, and keep {folder / 'secret'} apart from the disk."
    )


@secure.command()
def sign(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where setup made the authorities.")],
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the role sent.")],
    who: Annotated[str, typer.Argument(metavar="WHO", help="Whose it is, made sure of: 'owner north'.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PEM", help="Where the certificate goes.")],
    days: Annotated[int, typer.Option("--days", help="How long it is good.")] = 365,
    force: Force = False,
) -> None:
    """Sign a role's request for a certificate, once you have made sure whose it is.

    \b
    Example:
      veilwood secure sign clinics request.pem "owner north" -o certificate.pem
    """
    from veilwood_secure.roles.config import load_or_create_authority
    from veilwood_secure.roles.identity import PartyName, sign_request

    check_output(out, force)
    role, _, name = who.partition(" ")
    if role not in ("server", "owner", "user"):
        raise UseError(f"{who!r} is nobody. Hint: a role and a name, such as 'owner north'.")
    servers = role == "server"
    authority = load_or_create_authority(
        folder, "servers" if servers else "participants", ("server",) if servers else ("owner", "user")
    )
    out.write_bytes(sign_request(authority, request.read_bytes(), PartyName(role, name), days=days))  # type: ignore[arg-type]
    print(f"{out} is the certificate of {who}: send it back.")


@secure.command()
def install(
    folder: RoleFolder, certificate: Annotated[Path, typer.Argument(metavar="PEM", help="What the authority signed.")]
) -> None:
    """Put a signed certificate in place; a running server shows it from then on.

    \b
    Example:
      veilwood secure install clinics/owner-north certificate.pem
    """
    from veilwood_secure.roles.config import Config
    from veilwood_secure.roles.identity import install_certificate

    config = Config.load(folder)
    install_certificate(folder, certificate.read_bytes(), config.party_name, config.identity.secret)
    print(f"{config.party_name} is certified.")


@secure.command()
def server(
    folder: RoleFolder,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log details of failures.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", help="Answer /metrics, /health and /ready on 127.0.0.1:PORT."),
    ] = None,
) -> None:
    """Run one of the three servers until interrupted. Logs go to stderr and hold no value and no number of rows.

    \b
    Example:
      veilwood secure server clinics/server-0
    """
    from veilwood_secure.roles.config import Config
    from veilwood_secure.roles.monitoring import configure_logging
    from veilwood_secure.roles.server import Server

    config = Config.load(folder)
    configure_logging(config.party_name, "debug" if verbose else log_level())
    running = Server(config)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        if metrics is not None:
            running.start_endpoint(metrics)
        running.start()
        stop.wait()
    finally:
        running.close()


@secure.command()
def owner(
    folder: RoleFolder,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="The rows: CSV, Parquet or Arrow.")] = None,
    task: TaskName = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until the model is trained.")] = True,
    pad_to: Annotated[int | None, typer.Option("--pad-to", metavar="N", help="Hide how many rows there are.")] = None,
    part: Annotated[
        str, typer.Option("--part", metavar="NAME", help="What these rows are called; sent again, replaced.")
    ] = "rows",
    more: Annotated[bool, typer.Option("--more", help="Another part will follow: do not train yet.")] = False,
    retire: Annotated[bool, typer.Option("--retire", help="Have the servers forget the model instead.")] = False,
    ledger: Annotated[
        str | None, typer.Option("--ledger", metavar="DB", help="Charge this ledger, not ledger.db in FOLDER.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share the rows of an owner with the three servers, wait for the others, and show the certificate.

    \b
    Example:
      veilwood secure owner clinics/owner-north rows.csv
    """
    from veilwood.data.tables import read_features, read_table
    from veilwood_secure.roles.owner import Owner

    owner = Owner(folder, task, ledger)
    if retire:
        owner.retire()
        return print_result(
            as_json, {"retired": owner.task.name}, f"{owner.task.name} is retired: nobody can ask it again."
        )
    if table is None:
        found = owner.status()
        text = "\n".join(f"server {i}: {s['phase']}{_describe_wait(s)}" for i, s in enumerate(found))
        return print_result(as_json, found, text)
    if owner.participates:
        owner.participate(*read_table(table, owner.schema))
    elif owner.holds_target:
        X, y = read_table(table, owner.schema)
        owner.contribute(X, y, pad_to=pad_to, part=part, more=more)
    else:
        X = read_features(table, owner.schema)
        owner.contribute(X, pad_to=pad_to, part=part, more=more)
    if not as_json and not owner.participates:
        print("The rows are shared, and checked by the three servers.", flush=True)
    if not wait or more:
        return None
    statement = owner.wait()
    return print_result(as_json, statement.to_dict(), f"{owner.task.name} is trained. {statement}")


def _describe_wait(status: dict[str, Any]) -> str:
    failed = f"; the last attempt ended: {status['failure']}" if status["failure"] else ""
    missing = f" for {', '.join(status['missing'])}" if status["phase"] == "waiting" and status["missing"] else ""
    return missing + failed


@secure.command()
def user(
    folder: RoleFolder,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The questions: rows with the feature columns.")],
    task: TaskName = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="CSV", help="Where the answers go.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Ask the trained model; no server sees the questions or the answers.

    \b
    Example:
      veilwood secure user clinics/user-analyst patients.csv -o answers.csv
    """
    import pandas as pd

    from veilwood.data.tables import read_features
    from veilwood_secure.roles.user import User

    if out is not None:
        check_output(out, force)
    with User(folder, task) as asking:
        labels = asking.predict(read_features(table, asking.task.public_schema))
        statement = asking.privacy_
    answers = pd.DataFrame({"row": range(len(labels)), asking.task.public_schema.target.name: labels})
    if out is not None:
        answers.to_csv(out, index=False)
        return print_result(
            as_json, {"rows": len(labels), "out": str(out)}, f"{len(labels)} answers: {out}. {statement}"
        )
    text = answers.to_csv(index=False).strip()
    return print_result(as_json, {"labels": [str(label) for label in labels], "privacy": statement.to_dict()}, text)


@secure.command()
def demo(
    folder: Annotated[Path | None, typer.Option("--folder", help="Keep configurations and logs here.")] = None,
) -> None:
    """Run three servers, two owners and a user on this machine, and tell what each of them saw.

    \b
    Example:
      veilwood secure demo
    """
    from veilwood_secure.roles.local import run_demo

    run_demo(folder)
