# SPDX-License-Identifier: Apache-2.0
"""Configuration of a role (name, server addresses, agreed training tasks), and setup of all roles.

Keys and certificates are created in ``identity``; the meaning of a task is defined by its program (``program``).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography import x509

from veilwood.data.schema import Schema
from veilwood.errors import SchemaError, SetupError, UseError, VeilwoodError
from veilwood.safe_io import parse_fraction, read_json, read_text
from veilwood_secure.roles.identity import (
    Authority,
    Identity,
    PartyName,
    Role,
    certificate_dns_name,
    generate_secret,
    write_private_file,
)

CONFIG_FILE: Final = "config.json"
TASKS_FILE: Final = "tasks.json"
_SHARED_FIELDS: Final = ("servers", "tasks")
"""Fields of the file that all parties share; the other fields belong to the operator of the role."""
SECRET_VARIABLE: Final = "VEILWOOD_SECRET"
_PARTICIPANTS: Final[tuple[Role, ...]] = ("owner", "user")


@dataclass(frozen=True)
class Task:
    """A training task, as agreed by owners, servers and users before any data is shared.

    Parameters
    ----------
    name : str
        Name of the task and of the trained model.
    schema : dict
        The schema's JSON form.
    epsilon : str
        Privacy loss of training: a decimal number or a fraction, stored exactly.
    owners : dict
        Owners by name, all of which must contribute. The value is None if owners hold whole rows. If owners hold
        columns of the same rows in the same order, it lists the columns of the owner.
    users : tuple of str
        Names of the users who may query the trained model.
    protocol : str
        Name of the protocol; see ``program.PROTOCOLS``.
    settings : dict
        Parameters of the protocol, such as ``max_depth``.

    Examples
    --------
    >>> import veilwood as vw
    >>> iris = vw.datasets.iris().schema.to_dict()
    >>> task = Task("flowers", iris, "1/2", owners={"north": None, "south": None}, users=("analyst",))
    >>> task == Task.from_dict(task.to_dict())
    True
    """

    name: str
    schema: Mapping[str, Any]
    epsilon: str
    owners: Mapping[str, Sequence[str] | None]
    users: tuple[str, ...]
    protocol: str = "hidden-tree"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, names in (("owner", [self.name, *self.owners]), ("user", self.users)):
            for name in names:
                PartyName(role, name)  # type: ignore[arg-type]
        if not self.owners:
            raise UseError(f"task {self.name!r} has no owners. Hint: name the owners of the rows.")
        if self.exact_epsilon <= 0:
            raise UseError(f"task {self.name!r} has epsilon {self.epsilon}, but it must be above 0. Hint: increase it.")
        if self.public_schema.inferred:
            raise SchemaError(
                f"the schema of task {self.name!r} is an unreviewed draft, so no result would be private. "
                'Hint: replace its bounds by public knowledge and delete the marks "bounds", "notes" and "inferred".'
            )
        self._check_columns()

    def _check_columns(self) -> None:
        held = [column for columns in self.owners.values() for column in columns or ()]
        if not held:
            return
        wanted = sorted([*self.public_schema.feature_names, self.public_schema.target.name])
        if None in self.owners.values() or sorted(held) != wanted:
            raise UseError(
                f"task {self.name!r}: the owners hold the columns {sorted(held)}, the schema has {wanted}. "
                "Hint: assign every column to exactly one owner, or no columns at all."
            )

    @property
    def is_vertical(self) -> bool:
        """Whether owners hold columns of the same rows (vertical partition) rather than whole rows."""
        return any(columns is not None for columns in self.owners.values())

    def feature_indices(self, owner: str) -> list[int]:
        """Return the indices of the features that an owner holds."""
        held = self.owners[owner]
        return [i for i, name in enumerate(self.public_schema.feature_names) if held is None or name in held]

    def holds_target(self, owner: str) -> bool:
        """Return True if an owner holds the target column."""
        held = self.owners[owner]
        return held is None or self.public_schema.target.name in held

    @cached_property
    def public_schema(self) -> Schema:
        """The schema."""
        return Schema.from_dict(self.schema)

    @property
    def exact_epsilon(self) -> Fraction:
        """Epsilon, exactly."""
        return parse_fraction(self.epsilon, "epsilon")

    def fingerprint(self) -> str:
        """Return the SHA-256 of all fields. Roles compare it to detect different tasks of the same name."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as a dict of plain values for JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Rebuild a task from ``to_dict``."""
        try:
            return cls(**{**data, "users": tuple(data["users"]), "epsilon": str(data["epsilon"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise SetupError(
                f"a task in the configuration cannot be read ({error}). "
                "Hint: compare it with the output of veilwood secure setup."
            ) from None


class Address(NamedTuple):
    """Address of a server: host, port for the other servers, port for owners and users."""

    host: str
    peers: int
    participants: int


@dataclass(frozen=True)
class Config:
    """Configuration of one role, from two files. Paths are relative to their folder.

    ``tasks.json`` contains the addresses and tasks that all parties share, and is written by the authority.
    ``config.json`` belongs to the role's operator, and ``setup`` never overwrites it, so adding a task cannot undo a
    revocation.
    """

    folder: Path
    """Folder of the file, the certificate and the encrypted key."""
    role: Role
    name: str
    """Name of the party in its certificate."""
    servers: tuple[Address, ...]
    """Addresses of the three servers."""
    tasks: tuple[Task, ...] = ()
    """Tasks in which this role takes part."""
    secret: str | None = None
    """File with the secret that decrypts key and models. If None: VEILWOOD_SECRET, or a prompt."""
    listen: str = "127.0.0.1"
    """Address on which a server listens."""
    timeout: float = 60.0
    """Seconds without a message after which another party counts as lost."""
    largest_message: int = 1 << 30
    """Size in bytes above which a message is rejected unread."""
    refused: tuple[str, ...] = ()
    """Revoked parties (``"user analyst"``) or certificates (SHA-256 of the DER form in hexadecimal), for any task."""
    faulty: tuple[tuple[Any, str], ...] = ()
    """Invalid tasks of the file, in raw form with the reason. Invalid tasks do not affect the other tasks."""

    @property
    def party_name(self) -> PartyName:
        """Name in this role's certificate."""
        return PartyName(self.role, self.name)

    @property
    def servers_authority(self) -> Path:
        """Certificate of the authority that signs servers."""
        return self.folder / "servers.pem"

    @property
    def participants_authority(self) -> Path:
        """Certificate of the authority that signs owners and users."""
        return self.folder / "participants.pem"

    @cached_property
    def identity(self) -> Identity:
        """Certificate, key and the secret that decrypts it."""
        return Identity(self.folder / "certificate.pem", self.folder / "key.pem", self._read_secret())

    def _read_secret(self) -> bytes:
        """Read the secret from the environment, the operator's file or the terminal."""
        if SECRET_VARIABLE in os.environ:
            return os.environ[SECRET_VARIABLE].encode()
        if self.secret is not None and (self.folder / self.secret).exists():
            return (self.folder / self.secret).read_bytes().strip()
        if sys.stdin.isatty():
            return getpass.getpass(f"Secret of {self.party_name}: ").encode()
        place = self.folder / self.secret if self.secret else "no file is configured"
        raise SetupError(
            f"the secret of {self.party_name} was not found ({place}). "
            f"Hint: restore the file, or set {SECRET_VARIABLE}."
        )

    def find_task(self, name: str | None) -> Task:
        """Return the task of a name, or the only task if ``name`` is None. Raise SetupError if there is none."""
        named = {task.name: task for task in self.tasks}
        if name is None and len(named) == 1:
            return self.tasks[0]
        for raw, reason in self.faulty:
            if name is not None and isinstance(raw, dict) and raw.get("name") == name:
                raise SetupError(f"the configuration of {self.party_name} has an invalid task {name!r}: {reason}")
        if name not in named:
            asked = f"has no task {name!r}" if name is not None else "has several tasks"
            raise SetupError(
                f"the configuration of {self.party_name} {asked}. Hint: choose one of {', '.join(named) or 'none'}."
            )
        return named[name]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Read a configuration from its folder, or the ``config.json`` in it."""
        file = Path(path) / CONFIG_FILE if Path(path).is_dir() else Path(path)
        try:
            own, shared = read_json(read_text(file)), read_json(read_text(file.parent / TASKS_FILE))
            if set(shared) != set(_SHARED_FIELDS) or set(own) & set(shared):
                raise ValueError(f"{TASKS_FILE} must have {', '.join(_SHARED_FIELDS)}, {CONFIG_FILE} the other fields")
            data = own | shared
            data["servers"] = tuple(Address(**address) for address in data["servers"])
            data["tasks"], data["faulty"] = _parse_tasks(data["tasks"])
            data["refused"] = tuple(map(_parse_refusal, data.get("refused", ())))
            found = cls(folder=file.parent, **data)
        except FileNotFoundError as error:
            raise SetupError(
                f"there is no configuration {str(error.filename)!r}. Hint: create it with veilwood secure setup."
            ) from None
        except (OSError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise SetupError(f"configuration {str(file)!r} cannot be read: {error}.") from None
        if len(found.servers) != 3:
            raise SetupError(f"configuration {str(file)!r} names {len(found.servers)} servers instead of three.")
        return found

    @classmethod
    def load_for_role(cls, role: str, config: Config | str | os.PathLike[str]) -> Config:
        """Return a configuration, given directly or as a path. Raise UseError if it belongs to another role."""
        found = config if isinstance(config, Config) else cls.load(config)
        if found.role != role:
            raise UseError(f"{found.folder} belongs to {found.party_name}. Hint: pass the folder of a {role}.")
        found.check_certificate()
        return found

    def check_certificate(self) -> None:
        """Raise SetupError if the certificate in the folder belongs to another party."""
        file = self.folder / "certificate.pem"
        try:
            found = certificate_dns_name(x509.load_pem_x509_certificate(file.read_bytes()))
        except (FileNotFoundError, x509.ExtensionNotFound):
            raise SetupError(f"{self.party_name} has no certificate. Hint: see veilwood secure request.") from None
        except ValueError as error:
            raise SetupError(f"{file} cannot be read: {error}.") from None
        if found != self.party_name.dns_name:
            raise SetupError(
                f"{file} is the certificate of {found}, but {CONFIG_FILE} belongs to {self.party_name}. "
                "Hint: put the certificate of this role there."
            )

    @property
    def modified_ns(self) -> tuple[int, int]:
        """Times at which the two configuration files were last changed."""
        own, shared = ((self.folder / name).stat().st_mtime_ns for name in (CONFIG_FILE, TASKS_FILE))
        return own, shared

    def save(self) -> None:
        """Write both files to the role's folder."""
        own = [key for key in self.__dataclass_fields__ if key not in ("folder", "faulty", *_SHARED_FIELDS)]
        self._write_file(CONFIG_FILE, {key: getattr(self, key) for key in own})
        self.save_tasks()

    def save_tasks(self) -> None:
        """Write the file that all parties share."""
        tasks = [task.to_dict() for task in self.tasks] + [raw for raw, _ in self.faulty]
        self._write_file(TASKS_FILE, {"servers": [server._asdict() for server in self.servers], "tasks": tasks})

    def _write_file(self, name: str, data: Mapping[str, Any]) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        new.replace(self.folder / name)  # atomic: a server may be reading it


def _parse_refusal(text: str) -> str:
    """Parse an entry of "refused": a certificate hash, or a role and a name. Raise ValueError for anything else."""
    if (digits := re.sub(r"[:\s]|-$", "", text).lower()) and re.fullmatch(r"[0-9a-f]{64}", digits):
        return digits
    role, _, name = text.partition(" ")
    if role not in ("server", *_PARTICIPANTS):
        raise ValueError(f'{text!r} in "refused" is neither a role and name nor the SHA-256 of a certificate')
    return str(PartyName(role, name))


def _parse_tasks(raw_tasks: Sequence[Any]) -> tuple[tuple[Task, ...], tuple[tuple[Any, str], ...]]:
    """Parse the tasks of a file. An invalid task must not prevent a server from serving the others."""
    tasks, faulty = [], []
    for raw in raw_tasks:
        try:
            tasks.append(Task.from_dict(raw))
        except (VeilwoodError, TypeError, AttributeError, KeyError, ValueError) as error:
            faulty.append(
                (raw, str(error) if isinstance(error, VeilwoodError) else f"unexpected {type(error).__name__}.")
            )
    return tuple(tasks), tuple(faulty)


def default_task_name(schema: Schema) -> str:
    """Return a task name that is derived from the schema's name and valid in certificates and file names.

    Examples
    --------
    >>> import veilwood as vw
    >>> default_task_name(vw.datasets.balance_scale().schema)
    'balance-scale'
    """
    return re.sub(r"[^a-z0-9]+", "-", schema.name.lower()).strip("-")[:40].rstrip("-") or "task"


def set_up_roles(
    folder: Path,
    task: Task,
    *,
    addresses: Sequence[Address] = (),
    listen: Sequence[str] | None = None,
    timeout: float = 60.0,
    days: int = 365,
    keys: bool = True,
) -> list[Config]:
    """Create a folder for each role, or add a task and its participants to existing folders.

    A role's folder contains its configuration, certificate and encrypted key. ``secrets/`` contains the secret that
    decrypts each role's key; hand it over by a separate channel. Without ``keys``, each role draws its own key and
    requests a certificate (``identity.request_certificate``). An added task uses the server addresses of the first
    task.
    """
    if (folder / "server-0" / CONFIG_FILE).exists():
        addresses = Config.load(folder / "server-0").servers
    folder.mkdir(parents=True, exist_ok=True)
    secrets = folder / "secrets"
    secrets.mkdir(mode=0o700, exist_ok=True)
    signers: dict[Role, Authority] = {"server": load_or_create_authority(folder, "servers", ("server",))}
    signers["owner"] = signers["user"] = load_or_create_authority(folder, "participants", _PARTICIPANTS)
    participants = [PartyName("owner", owner) for owner in task.owners]
    participants += [PartyName("user", user) for user in task.users]
    made = []
    for who in [*(PartyName("server", str(party)) for party in range(3)), *participants]:
        place = folder / f"{who.role}-{who.name}"
        if (place / CONFIG_FILE).exists():
            config = Config.load(place)
            if any(known.name == task.name for known in config.tasks):
                raise UseError(f"{place} already has a task {task.name!r}. Hint: choose another --name.")
            config = replace(config, tasks=(*config.tasks, task))
            config.save_tasks()
        else:
            place.mkdir(exist_ok=True)
            if who.role != "user":
                (place / "budgets").mkdir(exist_ok=True)
            if keys:
                identity = signers[who.role].issue(who, place / "certificate.pem", place / "key.pem", days=days)
                write_private_file(secrets / f"{place.name}.secret", identity.secret + b"\n")
            for authority in ("servers", "participants"):
                (place / f"{authority}.pem").write_bytes((folder / "authorities" / f"{authority}.pem").read_bytes())
            at = (listen or [address.host for address in addresses])[int(who.name)] if who.role == "server" else ""
            secret = f"../secrets/{place.name}.secret" if keys else "secret"
            config = Config(place, who.role, who.name, tuple(addresses), (task,), secret, listen=at, timeout=timeout)
            config.save()
        made.append(config)
    return made


def load_or_create_authority(folder: Path, name: str, roles: tuple[Role, ...]) -> Authority:
    """Load the authority in this folder, or create it."""
    place, secret = folder / "authorities", folder / "secrets" / f"authority-{name}.secret"
    place.mkdir(exist_ok=True)
    certificate, key = place / f"{name}.pem", place / f"{name}.key"
    if certificate.exists():
        return Authority.load(roles, certificate, key, secret.read_bytes().strip())
    made = Authority.create(roles)
    write_private_file(secret, generate_secret() + b"\n")
    made.save(certificate, key, secret.read_bytes().strip())
    return made
