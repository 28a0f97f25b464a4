# SPDX-License-Identifier: Apache-2.0
"""Settings of a service: folder, database, addresses and limits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from veilwood.errors import ParameterError


@dataclass(frozen=True)
class Limits:
    """Limits on requests and jobs.

    Attributes
    ----------
    upload_bytes, body_bytes, small_body_bytes : int
        Maximum size of a table; of a schema, a batch of rows and certificates; of every other request.
    rows_a_request : int
        Maximum number of rows per prediction request.
    requests_a_minute : int
        Maximum number of requests per account and minute, in each process.
    logins_a_minute : int
        Maximum number of wrong passwords per name, address and minute, in each process. The limit per address over
        all names is five times as high.
    job_seconds, jobs_at_once, jobs_per_account : int
        Maximum duration of a job, number of concurrent jobs per process, and number of unfinished jobs per account.
    answer_milliseconds : int
        Time after which a private answer is sent. A longer computation is sent after twice, four times ... as long.
    """

    upload_bytes: int = 1 << 30
    body_bytes: int = 8 << 20
    small_body_bytes: int = 64 << 10
    rows_a_request: int = 10_000
    requests_a_minute: int = 120_000
    logins_a_minute: int = 10
    job_seconds: int = 24 * 3600
    jobs_at_once: int = 1
    jobs_per_account: int = 20
    answer_milliseconds: int = 500

    @classmethod
    def from_options(cls, options: Iterable[str]) -> Limits:
        """Parse limits given as ``NAME=NUMBER``.

        >>> Limits.from_options(["jobs_at_once=2"]).jobs_at_once
        2
        """
        names, values = [field.name for field in fields(cls)], dict[str, int]()
        for option in options:
            name, _, number = option.partition("=")
            if name not in names or not number.isascii() or not number.isdigit() or len(number) > 15:
                hint = f"pass NAME=NUMBER, where NAME is one of {', '.join(names)}"
                raise ParameterError("limit", option, "is not a limit", hint)
            values[name] = int(number)
        return cls(**values)


@dataclass(frozen=True)
class Settings:
    """Settings that an operator chooses before the service starts.

    Attributes
    ----------
    folder : Path
        Folder of tables and, without ``database``, of the database. Readable by its owner only.
    database : str
        ``postgresql://...`` for several processes and machines; empty for SQLite in the folder.
    allowed : tuple of str
        Folders from which a custodian may register tables by path.
    address : str
        Public address of the service: ``http://127.0.0.1:8400``. If it starts with https, cookies are sent over TLS
        only.
    issuer, client_id, client_secret : str
        OpenID provider, and the credentials of this service there. Empty without a provider.
    limits : Limits
        Limits on requests and jobs.
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
            hint = "pass postgresql://host/database, or omit it for SQLite"
            raise ParameterError("database", "...", "is not the address of a PostgreSQL database", hint)

    @property
    def is_secure(self) -> bool:
        """Whether the public address uses TLS."""
        return self.address.startswith("https://")

    @property
    def tables_folder(self) -> Path:
        """Folder of uploaded tables."""
        return self.folder / "tables"

    @property
    def ledger_heads(self) -> Path:
        """File with the last event of each ledger, outside the database, to detect that an older copy was restored."""
        return self.folder / "ledger-heads.json"

    def make_folders(self) -> None:
        """Create the folders, and make them readable by their owner only."""
        for folder in (self.folder, self.tables_folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:  # a folder that existed before: it will hold rows and password hashes
                folder.chmod(0o700)

    def to_json(self) -> str:
        """Return the settings as JSON, for a worker process."""
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that ``to_json`` wrote."""
        payload: dict[str, Any] = json.loads(text)
        limits = Limits(**payload.pop("limits"))
        folder, allowed = Path(payload.pop("folder")), tuple(payload.pop("allowed"))
        return cls(folder=folder, allowed=allowed, limits=limits, **payload)
