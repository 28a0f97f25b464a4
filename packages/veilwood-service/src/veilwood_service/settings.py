# SPDX-License-Identifier: Apache-2.0
"""What an operator decides before the service starts: places, limits, addresses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from veilwood.errors import ParameterError

__all__ = ["Limits", "Settings"]


@dataclass(frozen=True)
class Limits:
    """What one caller may ask for.

    Attributes
    ----------
    upload_bytes, body_bytes : int
        Of a table, and of every other request.
    rows_a_request : int
        Rows to predict for at once.
    requests_a_minute : int
        Of one account, in each process.
    logins_a_minute : int
        Wrong passwords for one name from one address, in each process; five times as many for all names.
    job_seconds, jobs_at_once : int
        How long a training may take, and how many run together.
    """

    upload_bytes: int = 1 << 30
    body_bytes: int = 8 << 20
    rows_a_request: int = 10_000
    requests_a_minute: int = 120_000
    logins_a_minute: int = 10
    job_seconds: int = 24 * 3600
    jobs_at_once: int = 1

    @classmethod
    def from_options(cls, options: Iterable[str]) -> Limits:
        """Read limits that an operator gives as words.

        >>> Limits.from_options(["jobs_at_once=2"]).jobs_at_once
        2
        """
        known, given = [one.name for one in fields(cls)], dict[str, int]()
        for word in options:
            name, _, number = word.partition("=")
            if name not in known or not number.isascii() or not number.isdigit() or len(number) > 15:
                raise ParameterError("limit", word, "is not a limit", f"NAME=NUMBER, one of {', '.join(known)}")
            given[name] = int(number)
        return cls(**given)


@dataclass(frozen=True)
class Settings:
    """Where the service keeps things and what it allows.

    Attributes
    ----------
    folder : Path
        Tables, models and, without a database, ledgers; readable by its owner alone.
    database : str
        ``postgresql://...`` for several processes and machines; empty for SQLite in the folder.
    allowed : tuple of str
        Folders from which a custodian may register tables by path, and addresses of databases, ``postgresql://...``.
    address : str
        How people reach the service: ``http://127.0.0.1:8400``. Cookies are for TLS only where it says https.
    issuer, client_id, client_secret : str
        An OpenID provider, if people come from one.
    """

    folder: Path
    database: str = ""
    allowed: tuple[str, ...] = ()
    address: str = "http://127.0.0.1:8400"
    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(os.path.abspath(self.folder)))
        if self.database and not self.database.startswith(("postgresql://", "postgres://")):
            raise ParameterError("database", "...", "is not a database", "postgresql://host/database, or leave it out")

    @property
    def is_secure(self) -> bool:
        """Whether people reach it by TLS."""
        return self.address.startswith("https://")

    @property
    def tables_folder(self) -> Path:
        """Where uploaded tables are."""
        return self.folder / "tables"

    @property
    def models_folder(self) -> Path:
        """Where models are."""
        return self.folder / "models"

    @property
    def ledgers_folder(self) -> Path:
        """Where ledgers are, and what is noted of those in a database."""
        return self.folder / "ledgers"

    def make_folders(self) -> None:
        """Make the folders, readable by their owner alone."""
        for folder in (self.folder, self.tables_folder, self.models_folder, self.ledgers_folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def to_json(self) -> str:
        """For a worker of the service."""
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what ``to_json`` wrote."""
        told: dict[str, Any] = json.loads(text)
        limits = Limits(**told.pop("limits"))
        return cls(**{**told, "folder": Path(told["folder"]), "allowed": tuple(told["allowed"])}, limits=limits)
