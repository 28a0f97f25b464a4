# SPDX-License-Identifier: Apache-2.0
"""Who may do what: accounts, roles, passwords, tokens and sessions.

Tokens are shown once and kept as hashes. A session of the page is a token in a cookie that scripts cannot read, beside
a second word that every change must repeat in a header, so that another site cannot act for the person.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from veilwood.errors import ParameterError, VeilwoodError
from veilwood_service import store
from veilwood_service.store import DatabaseRow, Store, current_timestamp, new_id

__all__ = ["ROLES", "SCOPES", "Accounts", "Caller", "DeniedError", "Throttle", "TooManyError", "network_of"]

ROLES: Final[dict[str, frozenset[str]]] = {
    "custodian": frozenset({"data", "sign", "plan", "run", "ask", "records"}),
    "analyst": frozenset({"plan", "run", "ask"}),
    "auditor": frozenset({"records"}),
    "operator": frozenset({"accounts", "operate"}),
}
"""What each role may do: register data and set budgets; sign plans; plan; run what was signed; predict and ask for
private answers; read all records; manage accounts; see how the service runs."""
SCOPES: Final = frozenset().union(*ROLES.values())

_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}")
_MIN_PASSWORD_LENGTH: Final = 12
_SCRYPT_PARAMETERS: Final = {"n": 2**14, "r": 8, "p": 5}  # 16 MiB and a twentieth of a second for each guess
_SESSION_HOURS: Final = 12
_MAX_TOKEN_DAYS: Final = 366
_CACHE_SECONDS: Final = 2.0  # a token that another process takes back works that much longer
_MAX_CACHED_CALLERS: Final = 10_000
_ADDRESS_LIMIT_FACTOR: Final = 5  # times as many wrong passwords for all names together, from one place
_MAX_CONCURRENT_HASHES: Final = 2  # passwords at once, so that guesses leave room for other work
_MAX_WAITING_LOGINS: Final = 8  # for their turn; each of them holds a thread that others need
_HASHING_TIMEOUT: Final = 5.0


class DeniedError(VeilwoodError):
    """Nobody known, or somebody who may not do this."""

    def __init__(self, message: str, *, is_authenticated: bool) -> None:
        super().__init__(message)
        self.is_authenticated = is_authenticated


class TooManyError(VeilwoodError):
    """More than a caller may ask for in a minute."""


@dataclass(frozen=True)
class Caller:
    """Who is asking, and what they may do by the token that they brought."""

    name: str
    roles: frozenset[str]
    scopes: frozenset[str]
    csrf: str | None = None  # of a session of the page
    kind: str = "session"  # or token

    def require_scope(self, scope: str) -> None:
        """Refuse who may not."""
        if scope not in self.scopes:
            raise DeniedError(
                f"this needs the right {scope!r}, which the account or the token lacks.", is_authenticated=True
            )

    def require_session(self, action: str) -> None:
        """Refuse tokens: what they make would outlive their end, and outlive being taken back."""
        if self.kind != "session":
            raise DeniedError(
                f"a token cannot {action}. Hint: log in on the page and do it there.", is_authenticated=True
            )


class Accounts:
    """The accounts in a store."""

    def __init__(self, database: Store, max_failures_per_minute: int = 10) -> None:
        self._database, self._max_failures_per_minute = database, max_failures_per_minute
        self._login_throttle = Throttle(60.0)
        self._hashing_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_HASHES)
        self._waiting_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_HASHES + _MAX_WAITING_LOGINS)
        self._caller_cache: dict[tuple[str, str], tuple[Caller, float]] = {}

    def create_account(self, name: str, password: str | None, roles: Iterable[str], subject: str | None = None) -> None:
        """Make an account; a password of a local one, a subject of one that an OpenID provider vouches for."""
        if not _NAME_PATTERN.fullmatch(name):
            raise ParameterError("name", name, "is not a name", "up to 40 small letters, digits, '.', '_' and '-'")
        if password is None and not subject:
            raise ParameterError("password", None, "is missing", "a password, or the subject of an OpenID provider")
        chosen = _validate_roles(roles)
        hashed = None if password is None else _hash_password(_validate_password(password))
        if not self._database.add(
            store.accounts,
            name=name,
            password=hashed,
            subject=subject,
            roles=chosen,
            disabled=0,
            created=current_timestamp(),
        ):
            raise ParameterError("name", name, "is taken", "choose another")

    def update_account(
        self,
        name: str,
        *,
        password: str | None = None,
        roles: Iterable[str] | None = None,
        disabled: bool | None = None,
    ) -> None:
        """Change an account. Who loses a role or is disabled loses every token and session at once."""
        values: dict[str, object] = {}
        if password is not None:
            values["password"] = _hash_password(_validate_password(password))
        if roles is not None:
            values["roles"] = _validate_roles(roles)
        if disabled is not None:
            values["disabled"] = int(disabled)
        if not values or not self._database.update(store.accounts, {"name": name}, **values):
            raise ParameterError("name", name, "is not an account, or nothing was to be changed", "see the accounts")
        self._database.remove(store.tokens, account=name)
        self._caller_cache.clear()

    def log_in(self, name: str, password: str, address: str = "") -> tuple[str, str]:
        """Return the word of a new session and the one that its changes must repeat.

        Tries are counted by where they come from, for one name and for all: whoever guesses elsewhere keeps nobody out.
        """
        place = network_of(address)
        limits = {
            f"{place} {name[:64]}": self._max_failures_per_minute,
            place: _ADDRESS_LIMIT_FACTOR * self._max_failures_per_minute,
        }
        for who, most in limits.items():
            self._login_throttle.check_limit(who, most)
        for who in limits:
            self._login_throttle.count_request(who)  # before the password is looked at: many at once are counted, too
        found = self._database.find(store.accounts, name=name) if _NAME_PATTERN.fullmatch(name) else None
        kept = None if found is None or found["disabled"] else found["password"]
        with self._hashing_slot():
            right = _is_right_password(password, kept)  # takes the same time for a name that is not known
        if not right:
            raise DeniedError("the name or the password is wrong.", is_authenticated=False)
        for who in limits:
            self._login_throttle.uncount_request(who)
        return self.open_session(name)

    @contextmanager
    def _hashing_slot(self) -> Iterator[None]:
        """Wait until a password can be hashed, or refuse where many wait already."""
        with ExitStack() as held:
            for place, seconds in ((self._waiting_slots, 0.0), (self._hashing_slots, _HASHING_TIMEOUT)):
                if not place.acquire(timeout=seconds):
                    raise TooManyError("too many people log in at this moment. Hint: try again.")
                held.callback(place.release)
            yield

    def has_password(self, name: str) -> bool:
        """Whether somebody has one here, or comes from an OpenID provider alone."""
        found = self._database.find(store.accounts, name=name)
        return found is not None and found["password"] is not None

    def change_password(self, caller: Caller, old: str, new: str, address: str = "") -> tuple[str, str]:
        """Change one's own password, by the one that was; return a new session, as all others and all tokens end."""
        caller.require_session("change a password")
        _validate_password(new)
        try:
            self.log_in(caller.name, old, address)
        except DeniedError:
            raise ParameterError("old", "...", "is not the password", "type the one that you logged in with") from None
        self.update_account(caller.name, password=new)
        return self.open_session(caller.name)

    def open_session(self, name: str) -> tuple[str, str]:
        """Start a session of the page for somebody whose identity was checked."""
        csrf = secrets.token_urlsafe(24)
        word, _ = self._create_token(name, "page", SCOPES, timedelta(hours=_SESSION_HOURS), "session", csrf)
        return word, csrf

    def issue_token(self, caller: Caller, name: str, scopes: Iterable[str], days: int) -> tuple[str, str]:
        """Return a new token, which is shown this once, and its number. It can do no more than who asks for it."""
        caller.require_session("make tokens")
        wanted = frozenset(scopes)
        if not wanted or not wanted <= caller.scopes:
            raise ParameterError("scopes", sorted(wanted), "are more than you have", ", ".join(sorted(caller.scopes)))
        if not 0 < days <= _MAX_TOKEN_DAYS:
            raise ParameterError("days", days, "is not a time to live", f"1 to {_MAX_TOKEN_DAYS}")
        return self._create_token(caller.name, name, wanted, timedelta(days=days), "token")

    def create_invitation(self) -> str:
        """Return a word by which one person can make the first account, once, within an hour."""
        return self._create_token("", "invitation", (), timedelta(hours=1), "invitation")[0]

    def accept_invitation(self, invitation: str, name: str, password: str) -> None:
        """Make the first account by an invitation: it may do everything, and gives roles to others."""
        found = self._database.find(store.tokens, digest=_hash_token(invitation), kind="invitation")
        if found is None or found["expires"] < current_timestamp() or self._database.find_all(store.accounts):
            raise DeniedError(
                "the invitation is not known, used or too old. Hint: start the service again.", is_authenticated=False
            )
        self.create_account(name, password, ROLES)
        self._database.remove(store.tokens, kind="invitation")

    def _create_token(
        self, account: str, name: str, scopes: Iterable[str], lifetime: timedelta, kind: str, csrf: str | None = None
    ) -> tuple[str, str]:
        word, number = "vw_" + secrets.token_urlsafe(32), new_id()
        expires = (datetime.now(UTC) + lifetime).isoformat(timespec="milliseconds")
        self._database.add(
            store.tokens,
            id=number,
            account=account,
            name=name[:200],
            digest=_hash_token(word),
            scopes=" ".join(sorted(scopes)),
            kind=kind,
            csrf=csrf,
            expires=expires,
            created=current_timestamp(),
        )
        return word, number

    def find_cached_caller(self, token: str, kind: str) -> Caller | None:
        """Return whose token or session a word is, if that was looked up in the last moments."""
        caller, until = self._caller_cache.get((_hash_token(token), kind), (None, 0.0))
        return caller if time.monotonic() < until else None

    def authenticate(self, token: str, kind: str) -> Caller:
        """Return whose token or session a word is, and remember it for a moment."""
        caller = self._load_caller(token, kind)
        if len(self._caller_cache) >= _MAX_CACHED_CALLERS:
            self._caller_cache.clear()
        self._caller_cache[_hash_token(token), kind] = (caller, time.monotonic() + _CACHE_SECONDS)
        return caller

    def _load_caller(self, token: str, kind: str) -> Caller:
        found = self._database.find(store.tokens, digest=_hash_token(token), kind=kind)
        if found is None or found["expires"] < current_timestamp():
            raise DeniedError(
                "the token or session is not known or has expired. Hint: log in again.", is_authenticated=False
            )
        account = self._database.find(store.accounts, name=found["account"])
        if account is None or account["disabled"]:
            raise DeniedError("the account is disabled.", is_authenticated=False)
        roles = frozenset(account["roles"].split())
        allowed = frozenset().union(*(ROLES[role] for role in roles))
        return Caller(account["name"], roles, allowed & frozenset(found["scopes"].split()), found["csrf"], kind)

    def log_out(self, token: str) -> None:
        """End a session."""
        self._database.remove(store.tokens, digest=_hash_token(token), kind="session")
        self._caller_cache.clear()

    def revoke_token(self, caller: Caller, number: str) -> None:
        """Take a token back: one's own, or anybody's by who manages accounts."""
        where = {} if "accounts" in caller.scopes else {"account": caller.name}
        if not self._database.remove(store.tokens, id=number, kind="token", **where):
            raise ParameterError("token", number, "is not known", "see the tokens")
        self._caller_cache.clear()

    def list_tokens(self, caller: Caller) -> list[DatabaseRow]:
        """List one's tokens, without their words."""
        found = self._database.find_all(store.tokens, account=caller.name, kind="token")
        return [{name: one[name] for name in ("id", "name", "scopes", "expires", "created")} for one in found]


class Throttle:
    """How often each caller came lately; in memory of one process.

    Counts by period: what came in the last one is weighed by how much of it is still within reach.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._counts: dict[str, tuple[float, int, int]] = {}  # when a period began, how many came in it and before

    def check_limit(self, key: str, limit: int) -> None:
        """Refuse who came too often."""
        with self._lock:
            began, count, before = self._current_window(key)
            if count + before * (1 - (time.monotonic() - began) / self._seconds) >= limit:
                raise TooManyError("too many requests. Hint: wait a minute.")

    def count_request(self, key: str) -> None:
        """Remember that somebody came."""
        with self._lock:
            if len(self._counts) > 100_000:
                self._counts.clear()
            began, count, before = self._current_window(key)
            self._counts[key] = (began, count + 1, before)

    def uncount_request(self, key: str) -> None:
        """Take back one that was counted, and turned out to be welcome."""
        with self._lock:
            began, count, before = self._current_window(key)
            self._counts[key] = (began, max(count - 1, 0), before)

    def _current_window(self, key: str) -> tuple[float, int, int]:
        now = time.monotonic()
        began, count, before = self._counts.get(key, (now, 0, 0))
        if now - began < self._seconds:
            return began, count, before
        return (began + self._seconds, 0, count) if now - began < 2 * self._seconds else (now, 0, 0)


def network_of(address: str) -> str:
    """Where somebody comes from: an address, or the network of 64 bits that one home has by itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "elsewhere"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _hash_password(password: str) -> str:
    salt = secrets.token_bytes(16)
    return f"{base64.b64encode(salt).decode()}${base64.b64encode(_derive_key(password, salt)).decode()}"


def _is_right_password(password: str, stored_hash: str | None) -> bool:
    salt, expected = (base64.b64decode(part) for part in (stored_hash or _DUMMY_HASH).split("$"))
    return hmac.compare_digest(_derive_key(password, salt), expected) and stored_hash is not None


def _derive_key(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=64 << 20, **_SCRYPT_PARAMETERS)


_DUMMY_HASH: Final = _hash_password(secrets.token_urlsafe())


def _validate_password(password: str) -> str:
    if not _MIN_PASSWORD_LENGTH <= len(password) <= 1000:
        raise ParameterError("password", "...", "is too short or too long", f"{_MIN_PASSWORD_LENGTH} letters or more")
    return password


def _validate_roles(roles: Iterable[str]) -> str:
    chosen = sorted(set(roles))
    if not chosen or not set(chosen) <= set(ROLES):
        raise ParameterError("roles", chosen, "are not known", f"some of {', '.join(ROLES)}")
    return " ".join(chosen)
