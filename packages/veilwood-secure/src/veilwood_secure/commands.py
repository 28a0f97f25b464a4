# SPDX-License-Identifier: Apache-2.0
"""Commands of ``veilwood secure``: setup, enrolment, and the roles of server, owner and user.

The roles are implemented in ``veilwood_secure.roles``.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from veilwood.cli.options import AsJson, Force, check_output, log_level, print_result, read_params
from veilwood.data.schema import Schema
from veilwood.errors import SetupError, UseError
from veilwood_secure import MISSING_EXTRA_MESSAGE

secure = typer.Typer(
    help="Train one model on secret-shared rows of several owners. Start with: veilwood secure demo",
    rich_markup_mode=None,
)


@secure.callback()
def _require_extra() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise SetupError(MISSING_EXTRA_MESSAGE)


RoleFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of this role, created by setup.")]
TaskName = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="Task name. Required if the folder has several tasks.")
]


@secure.command("setup")
def set_up_task(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder for the folders of all roles.")],
    schema: Annotated[Path, typer.Option("--schema", "-s", metavar="SCHEMA", help="Schema file (JSON).")],
    owner: Annotated[
        list[str],
        typer.Option(
            "--owner", metavar="NAME[=COL,COL]", help="Owner of rows, or of the named columns. Repeat for each owner."
        ),
    ],
    user: Annotated[
        list[str], typer.Option("--user", metavar="NAME", help="User who may query the model. May be repeated.")
    ],
    epsilon: Annotated[str, typer.Option("--epsilon", metavar="E", help="Privacy loss of training.")] = "1",
    name: Annotated[
        str | None, typer.Option("--name", help="Task name. Default: name derived from the schema.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Host of a server. Pass it three times: for servers 0, 1 and 2."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="First port. Each server uses two ports.")] = 7100,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="ADDRESS", help="Address on which servers listen. Default: their host."),
    ] = None,
    protocol: Annotated[str, typer.Option("--protocol", help="Training protocol. See docs/secure.md.")] = "hidden-tree",
    setting: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="KEY=VALUE", help="Setting of the protocol. May be repeated."),
    ] = None,
    days: Annotated[int, typer.Option("--days", help="Validity of certificates in days.")] = 365,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds after which a silent party counts as lost.")
    ] = 60.0,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys/--no-keys",
            help="Create the keys of all roles on this machine, or let each role create its key and "
            "request a certificate.",
        ),
    ] = True,
) -> None:
    """Create keys, certificates and a configuration for each role.

    Run it again with --name to add a task. The servers check each other's messages (servers=checked) if the protocol
    supports it.

    \b
    Example:
      veilwood secure setup clinics --schema heart.json --epsilon 1 \\
        --owner north --owner south --user analyst \\
        --host a.example --host b.example --host c.example
    """
    from veilwood_secure.roles.config import Address, Task, default_task_name, set_up_roles
    from veilwood_secure.roles.program import program_for_task, with_checked_servers

    hosts = host or ["127.0.0.1"] * 3
    if len(hosts) != 3:
        raise UseError(f"--host was given {len(hosts)} times. Hint: pass it once for each of the three servers.")
    public = Schema.load(schema)
    owners: dict[str, list[str] | None] = {}
    for argument in owner:
        party, _, columns = argument.partition("=")
        if party in owners:
            raise UseError(
                f"--owner {party} was given twice. Hint: give each owner a different name, or list all "
                "columns of an owner at once."
            )
        owners[party] = columns.split(",") if columns else None
    task = Task(
        name or default_task_name(public),
        public.to_dict(),
        epsilon,
        owners,
        tuple(user),
        protocol,
        read_params(setting),
    )
    program_for_task(task)  # raises if the task is invalid, whatever its servers
    task, obstacle = with_checked_servers(task)
    program = program_for_task(task)
    # Two servers on one host need different ports.
    addresses = [Address(place, port + 2 * party, port + 2 * party + 1) for party, place in enumerate(hosts)]
    known = {place.parent.name for place in folder.glob("*/config.json")}
    configs = set_up_roles(
        folder,
        task,
        addresses=addresses,
        listen=[listen] * 3 if listen else None,
        timeout=timeout,
        days=days,
        keys=keys,
    )
    servers = "checked" if program.is_checked else "honest"
    print(f"Task {task.name}: {program.plan.loss}, servers={servers}. Folders in {folder}:")
    if obstacle is not None:
        print(f"  Servers are assumed to follow the protocol: {obstacle}")
    for config in configs:
        print(f"  {config.folder.name:<20} for {config.party_name}")
    if known:
        print(
            "Send each existing role its new tasks.json. Its operator must read the file and install it in the folder."
        )
    if known.issuperset(config.folder.name for config in configs):
        return
    if not keys:
        print("Give each new role its folder. It runs veilwood secure request FOLDER and sends you request.pem.")
        return
    print(f"Give each new role its folder and, by another channel, its secret from {folder / 'secrets'}.")
    print("Then delete the secrets and every key.pem here.")
    print(f"Keep {folder / 'authorities'} and its secrets offline: they can be used to add parties.")


@secure.command("request")
def request_identity(folder: RoleFolder) -> None:
    """Create a key for this role on this machine and write a certificate request.

    Run it also to renew a certificate: the current certificate stays in use until you install the new certificate.

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
        f"Send {folder / REQUEST_FILE} to the operator of the authorities. "
        f"Store {folder / 'secret'} apart from this disk."
    )


@secure.command("sign")
def sign_identity(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder of setup, with the authorities.")],
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="Certificate request of the role.")],
    who: Annotated[
        str,
        typer.Argument(metavar="WHO", help="Role and name of the requester, which you have verified: 'owner north'."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PEM", help="Output file for the certificate.")],
    days: Annotated[int, typer.Option("--days", help="Validity of the certificate in days.")] = 365,
    force: Force = False,
) -> None:
    """Sign the certificate request of a role whose identity you have verified.

    \b
    Example:
      veilwood secure sign clinics request.pem "owner north" -o certificate.pem
    """
    from veilwood_secure.roles.config import load_or_create_authority
    from veilwood_secure.roles.identity import PartyName, sign_request

    check_output(out, force)
    role, _, name = who.partition(" ")
    if role not in ("server", "owner", "user"):
        raise UseError(f"{who!r} is not a role and a name. Hint: pass one such as 'owner north'.")
    servers = role == "server"
    authority = load_or_create_authority(
        folder, "servers" if servers else "participants", ("server",) if servers else ("owner", "user")
    )
    out.write_bytes(sign_request(authority, request.read_bytes(), PartyName(role, name), days=days))  # type: ignore[arg-type]
    print(f"{out} is the certificate of {who}. Send it to that role.")


@secure.command("install")
def install_identity(
    folder: RoleFolder,
    certificate: Annotated[Path, typer.Argument(metavar="PEM", help="Certificate signed by the authority.")],
) -> None:
    """Install a signed certificate. A running server uses it for new connections.

    \b
    Example:
      veilwood secure install clinics/owner-north certificate.pem
    """
    from veilwood_secure.roles.config import Config
    from veilwood_secure.roles.identity import install_certificate

    config = Config.load(folder)
    install_certificate(folder, certificate.read_bytes(), config.party_name, config.identity.secret)
    print(f"{config.party_name} is certified.")


@secure.command("server")
def run_server(
    folder: RoleFolder,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log details of failures.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", help="Serve /metrics, /health and /ready on 127.0.0.1:PORT."),
    ] = None,
) -> None:
    """Run one of the three servers until interrupted.

    Logs go to standard error. They contain no private values and no number of rows.

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


@secure.command("owner")
def run_owner(
    folder: RoleFolder,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]", help="Rows as CSV, Parquet or Arrow. Default: none; print the status of the servers."
        ),
    ] = None,
    task: TaskName = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the model is trained.")] = True,
    pad_to: Annotated[
        int | None,
        typer.Option("--pad-to", metavar="N", help="Number of rows to pad to, which hides the true number of rows."),
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            "--part", metavar="NAME", help="Name of this batch of rows. A batch with the same name replaces it."
        ),
    ] = "rows",
    more: Annotated[
        bool, typer.Option("--more", help="Announce another batch: the servers wait for it before training.")
    ] = False,
    retire: Annotated[
        bool,
        typer.Option("--retire", help="Delete the model from the servers and block queries, instead of sending rows."),
    ] = False,
    ledger: Annotated[
        str | None, typer.Option("--ledger", metavar="DB", help="Ledger to charge. Default: ledger.db in FOLDER.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share the rows of an owner with the three servers, wait for training, and print the certificate.

    \b
    Example:
      veilwood secure owner clinics/owner-north rows.csv
    """
    from veilwood.data.tables import read_table
    from veilwood_secure.roles.owner import Owner

    party = Owner(folder, task, ledger)
    if retire:
        party.retire()
        return print_result(
            as_json, {"retired": party.task.name}, f"{party.task.name} is retired and cannot be queried."
        )
    if table is None:
        statuses = party.status()
        text = "\n".join(f"server {i}: {s['phase']}{_describe_wait(s)}" for i, s in enumerate(statuses))
        return print_result(as_json, statuses, text)
    if party.participates:
        party.participate(*read_table(table, party.schema))
    elif party.holds_target:
        X, y = read_table(table, party.schema)
        party.contribute(X, y, pad_to=pad_to, part=part, more=more)
    else:
        X = read_table(table, party.schema, target=False)
        party.contribute(X, pad_to=pad_to, part=part, more=more)
    if not as_json and not party.participates:
        print("The rows are shared and were checked by the three servers.", flush=True)
    if not wait or more:
        return None
    certificate = party.wait()
    return print_result(as_json, certificate.to_dict(), f"{party.task.name} is trained. {certificate}")


def _describe_wait(status: dict[str, Any]) -> str:
    failed = f"; the last attempt ended: {status['failure']}" if status["failure"] else ""
    missing = f" for {', '.join(status['missing'])}" if status["phase"] == "waiting" and status["missing"] else ""
    return missing + failed


AlignmentName = Annotated[
    str, typer.Option("--name", help="Name of this alignment: the same for all owners, and never used again.")
]
IdColumn = Annotated[str, typer.Option("--id", metavar="COLUMN", help="Column with the ids.")]
OutFile = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file.")]


@secure.command("align-start")
def align_start(
    folder: RoleFolder,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="This owner's rows: CSV with a column of ids.")],
    column: IdColumn,
    name: AlignmentName,
    out: OutFile,
    pad_to: Annotated[
        int | None,
        typer.Option(
            "--pad-to", metavar="N", help="Number of ids to pad to, which hides the true number from other owners."
        ),
    ] = None,
    task: TaskName = None,
    force: Force = False,
) -> None:
    """Blind this owner's ids, the first step to find the rows that all owners have.

    Send the output file to the next owner of columns.

    \b
    Example:
      veilwood secure align-start clinics/owner-bank rows.csv --id patient --name may -o bank.ids
    """
    from veilwood_secure.roles.owner import Owner

    check_output(out, force)
    ids = _read_texts(table, column)[column]
    out.write_bytes(Owner(folder, task).alignment(name).start(ids, pad_to).to_bytes())
    print(f"Send {out} to another owner of columns, who runs veilwood secure align-blind.")


@secure.command("align-blind")
def align_blind(
    folder: RoleFolder,
    ids: Annotated[Path, typer.Argument(metavar="IDS", help="Blinded ids of another owner.")],
    name: AlignmentName,
    out: OutFile,
    task: TaskName = None,
    force: Force = False,
) -> None:
    """Add this owner's blinding to the ids of another owner.

    After every owner has blinded the ids, send the output file to all owners.

    \b
    Example:
      veilwood secure align-blind clinics/owner-clinic bank.ids --name may -o bank.all
    """
    from veilwood_secure.roles.alignment import BlindedIds
    from veilwood_secure.roles.owner import Owner

    check_output(out, force)
    found = Owner(folder, task).alignment(name).blind(BlindedIds.from_bytes(ids.read_bytes()))
    out.write_bytes(found.to_bytes())
    print(f"{out}: ids of {found.owner}, blinded by {', '.join(found.blinded_by)}.")


@secure.command("align-finish")
def align_finish(
    folder: RoleFolder,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="This owner's rows, as for align-start.")],
    ids: Annotated[
        list[Path],
        typer.Argument(metavar="IDS...", help="Files with the ids of every owner, each blinded by all owners."),
    ],
    column: IdColumn,
    name: AlignmentName,
    out: OutFile,
    task: TaskName = None,
    force: Force = False,
) -> None:
    """Write the rows that all owners have, without ids and in an order common to all owners.

    \b
    Example:
      veilwood secure align-finish clinics/owner-bank rows.csv bank.all clinic.all \\
        --id patient --name may -o aligned.csv
    """
    from veilwood_secure.roles.alignment import BlindedIds
    from veilwood_secure.roles.owner import Owner

    check_output(out, force)
    rows = _read_texts(table, column)
    lists = [BlindedIds.from_bytes(file.read_bytes()) for file in ids]
    chosen = Owner(folder, task).alignment(name).finish(lists, len(rows))
    rows.iloc[chosen].drop(columns=column).to_csv(out, index=False)
    print(f"{out}: the rows of this owner that all owners have. Contribute this file unchanged.")


def _read_texts(table: Path, column: str) -> Any:
    """Read a CSV file with all values as unchanged strings."""
    import pandas as pd

    try:
        rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UseError(f"{table} cannot be read: {getattr(error, 'strerror', None) or 'not a CSV file'}.") from None
    if column not in rows:
        raise UseError(f"{table} has no column {column!r}. Hint: pass the name of the column of ids with --id.")
    return rows


@secure.command("user")
def query_model(
    folder: RoleFolder,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Queries: rows with the feature columns.")],
    task: TaskName = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="CSV", help="Output file. Default: standard output.")
    ] = None,
    receipts: Annotated[
        Path | None,
        typer.Option("--receipts", metavar="JSON", help="Output file for the answers as signed by the servers."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Query the trained model. No server sees the queries or the answers.

    \b
    Example:
      veilwood secure user clinics/user-analyst patients.csv -o answers.csv
    """
    import pandas as pd

    from veilwood.data.tables import read_table
    from veilwood_secure.roles.user import User

    for file in (out, receipts):
        if file is not None:
            check_output(file, force)
    with User(folder, task) as party:
        labels = party.predict(read_table(table, party.task.public_schema, target=False))
        certificate = party.privacy_
    if receipts is not None:
        receipts.write_text(json.dumps([each.to_dict() for each in party.receipts], indent=1) + "\n")
    answers = pd.DataFrame({"row": range(len(labels)), party.task.public_schema.target.name: labels})
    if out is not None:
        answers.to_csv(out, index=False)
        return print_result(
            as_json, {"rows": len(labels), "out": str(out)}, f"{len(labels)} answers: {out}. {certificate}"
        )
    text = answers.to_csv(index=False).strip()
    return print_result(as_json, {"labels": [str(label) for label in labels], "privacy": certificate.to_dict()}, text)


@secure.command("verify-receipts")
def verify_receipts(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of any role of the task.")],
    receipts: Annotated[Path, typer.Argument(metavar="JSON", help="Receipts written by veilwood secure user.")],
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Queries that the signed answers must match.")
    ] = None,
    task: TaskName = None,
    as_json: AsJson = False,
) -> None:
    """Verify the servers' signatures on answers, and print the answers.

    \b
    Example:
      veilwood secure verify-receipts clinics/user-analyst receipts.json patients.csv
    """
    import numpy as np

    from veilwood.data.encoding import class_labels
    from veilwood.data.tables import read_table
    from veilwood.safe_io import read_json, read_text
    from veilwood_secure.roles.config import Config
    from veilwood_secure.roles.hidden_programs import HiddenForest
    from veilwood_secure.roles.program import program_for_task
    from veilwood_secure.roles.receipts import Receipt, read_answers

    config = Config.load(folder)
    chosen = config.find_task(task)
    found = [Receipt.from_dict(data) for data in read_json(read_text(receipts))]
    authority = config.servers_authority.read_bytes()
    program = program_for_task(chosen)
    if not isinstance(program, HiddenForest):
        signers = ", ".join(str(receipt.verify(authority)) for receipt in found)
        training, opened = (found[0].facts.get(key) for key in ("training", "opened"))
        return print_result(
            as_json, {"training": training, "opened": opened}, f"training {training} opened {opened}: {signers}"
        )
    batches = read_answers(found, program, authority)
    if table is not None:
        queries = program.encode_queries(read_table(table, chosen.public_schema, target=False))[0]
        for name, array in queries.items():
            signed = np.concatenate([batch.queries[name] for batch in batches], axis=-1)
            if not np.array_equal(signed, array):
                raise UseError(
                    f"{receipts} has answers to different rows from those of {table}. Hint: pass the "
                    "queries of these receipts."
                )
    labels = class_labels(chosen.public_schema)[np.concatenate([batch.answers for batch in batches])]
    target = chosen.public_schema.target.name
    text = "\n".join([f"row,{target}", *(f"{row},{label}" for row, label in enumerate(labels))])
    return print_result(as_json, {"labels": [str(label) for label in labels], "training": batches[0].training}, text)


@secure.command("demo")
def show_demo(
    folder: Annotated[Path | None, typer.Option("--folder", help="Output folder for configurations and logs.")] = None,
    lie: Annotated[
        bool, typer.Option("--lie", help="First let a server change one bit, and show that the change is detected.")
    ] = False,
) -> None:
    """Run three servers, two owners and a user on this machine, and report what each of them saw.

    \b
    Example:
      veilwood secure demo
    """
    from veilwood_secure.roles.local import run_demo

    run_demo(folder, lie=lie)
