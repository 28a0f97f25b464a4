# SPDX-License-Identifier: Apache-2.0
"""The one file each role is given: who it is, where the servers are, and the tasks all have agreed to.

Keys and certificates are made in ``identity``; what a task means is decided in ``programs``.
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

from veilwood.data.schema import Schema
from veilwood.errors import SchemaError, SetupError, UseError, VeilwoodError
from veilwood.safe_io import parse_fraction, read_json, read_text
from veilwood_secure.roles.identity import Authority, Identity, PartyName, Role, generate_secret, write_private_file

__all__ = ["Address", "Config", "Task", "default_task_name", "set_up_roles"]

CONFIG_FILE: Final = "config.json"
SECRET_VARIABLE: Final = "VEILWOOD_SECRET"
_PARTICIPANTS: Final[tuple[Role, ...]] = ("owner", "user")


@dataclass(frozen=True)
class Task:
    """What owners, servers and users agree to compute, before any data is shared.

    Parameters
    ----------
    name : str
        What it is called, and the trained model with it.
    schema : dict
        The schema's JSON form.
    epsilon : str
        The privacy loss of training, a decimal number or a fraction, kept exactly.
    owners : dict
        Whose rows are needed, all of them. The value is None where an owner holds whole rows, or the columns it
        holds where every owner has some columns of the same rows, in the same order.
    users : tuple of str
        Who may ask the trained model.
    protocol : str
        How it is trained; see ``programs``.
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
            raise UseError(f"task {self.name!r} has no owners. Hint: name those who hold the rows.")
        if self.exact_epsilon <= 0:
            raise UseError(f"task {self.name!r} has epsilon {self.epsilon}. Hint: it must be above 0.")
        if self.public_schema.inferred:
            raise SchemaError(
                f"the schema of task {self.name!r} is an unreviewed draft, so nothing it is used for is private. "
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
                "Hint: give every column to exactly one owner, or none to any."
            )

    @property
    def is_vertical(self) -> bool:
        """Whether owners hold columns of the same rows (vertical), not rows of the same columns."""
        return any(columns is not None for columns in self.owners.values())

    def feature_indices(self, owner: str) -> list[int]:
        """The places of the features an owner holds."""
        held = self.owners[owner]
        return [i for i, name in enumerate(self.public_schema.feature_names) if held is None or name in held]

    def holds_target(self, owner: str) -> bool:
        """Whether an owner holds the column to be predicted."""
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
        """Return the SHA-256 of everything above: roles that mean the same task share it."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Read what ``to_dict`` wrote."""
        try:
            return cls(**{**data, "users": tuple(data["users"]), "epsilon": str(data["epsilon"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise SetupError(f"a task of the configuration cannot be read ({error}).") from None


class Address(NamedTuple):
    """Where one server is reached: by the other servers, and by owners and users."""

    host: str
    peers: int
    participants: int


@dataclass(frozen=True)
class Config:
    """One role's configuration; paths are relative to the folder of its file."""

    folder: Path
    """Where the file, the certificate and the encrypted key are."""
    role: Role
    name: str
    """Who this is, as in the certificate."""
    servers: tuple[Address, ...]
    """The three servers."""
    tasks: tuple[Task, ...] = ()
    """What this role takes part in."""
    secret: str | None = None
    """File that holds the secret which opens key and models; None: asked for, or in VEILWOOD_SECRET."""
    listen: str = "127.0.0.1"
    """The address a server listens on."""
    timeout: float = 60.0
    """Seconds without a word after which another party counts as lost."""
    largest_message: int = 1 << 30
    """Bytes beyond which a message is refused unread."""
    refused: tuple[str, ...] = ()
    """Whom this server serves no more, whatever the tasks say: ``"user analyst"``, or one certificate by the SHA-256
    of its DER form in hexadecimal digits.
    """
    faulty: tuple[tuple[Any, str], ...] = ()
    """Tasks of the file that make no sense, as they stand there, each with the reason: the others are not harmed."""

    @property
    def party_name(self) -> PartyName:
        """The name in this role's certificate."""
        return PartyName(self.role, self.name)

    @property
    def servers_authority(self) -> Path:
        """The certificate of the authority that signs the servers."""
        return self.folder / "servers.pem"

    @property
    def participants_authority(self) -> Path:
        """The certificate of the authority that signs owners and users."""
        return self.folder / "participants.pem"

    @cached_property
    def identity(self) -> Identity:
        """Certificate, key and the secret that opens it."""
        return Identity(self.folder / "certificate.pem", self.folder / "key.pem", self._read_secret())

    def _read_secret(self) -> bytes:
        """From the environment, the operator's file, or the operator."""
        if SECRET_VARIABLE in os.environ:
            return os.environ[SECRET_VARIABLE].encode()
        if self.secret is not None and (self.folder / self.secret).exists():
            return (self.folder / self.secret).read_bytes().strip()
        if sys.stdin.isatty():
            return getpass.getpass(f"Secret of {self.party_name}: ").encode()
        place = self.folder / self.secret if self.secret else "no file is named"
        raise SetupError(
            f"the secret of {self.party_name} is not at hand ({place}). Hint: put the file back, or set {SECRET_VARIABLE}."
        )

    def find_task(self, name: str | None) -> Task:
        """The task of a name; without one, the only task there is."""
        named = {task.name: task for task in self.tasks}
        if name is None and len(named) == 1:
            return self.tasks[0]
        for raw, reason in self.faulty:
            if name is not None and isinstance(raw, dict) and raw.get("name") == name:
                raise SetupError(
                    f"the configuration of {self.party_name} has a task {name!r} that makes no sense: {reason}"
                )
        if name not in named:
            asked = f"has no task {name!r}" if name is not None else "has several tasks"
            raise SetupError(
                f"the configuration of {self.party_name} {asked}. Hint: one of {', '.join(named) or 'none'}."
            )
        return named[name]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Read a configuration from its file, or from the folder it is in."""
        file = Path(path) / CONFIG_FILE if Path(path).is_dir() else Path(path)
        try:
            data = read_json(read_text(file))
            data["servers"] = tuple(Address(**address) for address in data["servers"])
            data["tasks"], data["faulty"] = _parse_tasks(data["tasks"])
            data["refused"] = tuple(map(_parse_refusal, data.get("refused", ())))
            found = cls(folder=file.parent, **data)
        except FileNotFoundError:
            raise SetupError(f"there is no configuration {str(file)!r}. Hint: veilwood secure setup.") from None
        except (OSError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise SetupError(f"configuration {str(file)!r} cannot be read: {error}.") from None
        if len(found.servers) != 3:
            raise SetupError(f"configuration {str(file)!r} names {len(found.servers)} servers; there are three.")
        return found

    @classmethod
    def load_for_role(cls, role: str, config: Config | str | os.PathLike[str]) -> Config:
        """Return a configuration, given as such or by its place, that must belong to a role."""
        found = config if isinstance(config, Config) else cls.load(config)
        if found.role != role:
            raise UseError(f"{found.folder} belongs to {found.party_name}. Hint: give the folder of a {role}.")
        return found

    def save(self) -> None:
        """Write the file into the role's folder."""
        kept = [key for key in self.__dataclass_fields__ if key not in ("folder", "faulty")]
        data = {key: getattr(self, key) for key in kept} | {"servers": [server._asdict() for server in self.servers]}
        data["tasks"] = [task.to_dict() for task in self.tasks] + [raw for raw, _ in self.faulty]
        text = json.dumps(data, indent=1) + "\n"
        new = self.folder / f"{CONFIG_FILE}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.folder / CONFIG_FILE)  # a server may be reading it


def _parse_refusal(text: str) -> str:
    """Read whom a server refuses: a hash as tools write it, or a role and name; anything else would refuse nobody."""
    if (digits := re.sub(r"[:\s]|-$", "", text).lower()) and re.fullmatch(r"[0-9a-f]{64}", digits):
        return digits
    role, _, name = text.partition(" ")
    if role not in ("server", *_PARTICIPANTS):
        raise ValueError(f'{text!r} in "refused" is neither a role and name nor the SHA-256 of a certificate')
    return str(PartyName(role, name))


def _parse_tasks(raw_tasks: Sequence[Any]) -> tuple[tuple[Task, ...], tuple[tuple[Any, str], ...]]:
    """Read the tasks of a file: one that makes no sense must not keep a server from serving the others."""
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
    """Return a name for the task of a schema, as certificates and files can hold it.

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
    """Make a folder for each role, or add a task and its participants to folders made before.

    Without ``keys``, each role draws its own and asks for a certificate (``enrolment``).

    Each role's folder holds its configuration, certificate and encrypted key; ``secrets/`` holds, for each
    role, the secret that opens them, to be handed over by another way and kept elsewhere. Where the servers are is
    asked for once: an added task has those of the first.
    """
    if (folder / "server-0" / CONFIG_FILE).exists():
        addresses = Config.load(folder / "server-0").servers
    folder.mkdir(parents=True, exist_ok=True)
    secrets = folder / "secrets"
    secrets.mkdir(mode=0o700, exist_ok=True)
    signers: dict[Role, Authority] = {"server": load_or_create_authority(folder, "servers", ("server",))}
    signers["owner"] = signers["user"] = load_or_create_authority(folder, "participants", _PARTICIPANTS)
    participants = [PartyName("owner", owner) for owner in task.owners] + [
        PartyName("user", user) for user in task.users
    ]
    made = []
    for who in [*(PartyName("server", str(party)) for party in range(3)), *participants]:
        place = folder / f"{who.role}-{who.name}"
        if (place / CONFIG_FILE).exists():
            config = Config.load(place)
            if any(known.name == task.name for known in config.tasks):
                raise UseError(f"{place} has a task {task.name!r} already. Hint: give another --name.")
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
            config = Config(place, who.role, who.name, tuple(addresses), (), secret, listen=at, timeout=timeout)
        config = replace(config, tasks=(*config.tasks, task))
        config.save()
        made.append(config)
    return made


def load_or_create_authority(folder: Path, name: str, roles: tuple[Role, ...]) -> Authority:
    """Load an authority of this folder, or draw it."""
    place, secret = folder / "authorities", folder / "secrets" / f"authority-{name}.secret"
    place.mkdir(exist_ok=True)
    certificate, key = place / f"{name}.pem", place / f"{name}.key"
    if certificate.exists():
        return Authority.load(roles, certificate, key, secret.read_bytes().strip())
    made = Authority.create(roles)
    write_private_file(secret, generate_secret() + b"\n")
    made.save(certificate, key, secret.read_bytes().strip())
    return made
