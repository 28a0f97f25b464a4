# SPDX-License-Identifier: Apache-2.0
"""Accounts, roles, passwords, tokens and sessions.

Tokens are shown once and stored as hashes. A session of the web page is a token in an HttpOnly cookie. Every change in
a session must also send a CSRF token in a header, so that another site cannot act on behalf of the user.
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

ROLES: Final[dict[str, frozenset[str]]] = {
    "custodian": frozenset({"data", "sign", "plan", "run", "ask", "records"}),
    "analyst": frozenset({"plan", "run", "ask"}),
    "auditor": frozenset({"records"}),
    "operator": frozenset({"accounts", "operate"}),
}
"""Scopes of each role. ``data``: register data sets and set budgets; ``sign``: sign plans; ``plan``: propose plans;
``run``: run signed plans; ``ask``: predict and query; ``records``: read all records; ``accounts``: manage accounts;
``operate``: read metrics and the states of jobs."""
SCOPES: Final = frozenset().union(*ROLES.values())

_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}")
_MIN_PASSWORD_LENGTH: Final = 12
_SCRYPT_PARAMETERS: Final = {"n": 2**14, "r": 8, "p": 5}  # 16 MiB and about 0.05 seconds per guess
SESSION_HOURS: Final = 12
_MAX_TOKEN_DAYS: Final = 366
_CACHE_SECONDS: Final = 2.0  # a token revoked by another process is accepted for up to this long
_MAX_CACHED_CALLERS: Final = 10_000
_ADDRESS_LIMIT_FACTOR: Final = 5  # limit of wrong passwords per address over all names, as a multiple of that per name
_MAX_CONCURRENT_HASHES: Final = 2  # password hashes at once, so that guessing leaves cores for other requests
_MAX_WAITING_LOGINS: Final = 8  # each waiting login occupies a thread that other requests need
_HASHING_TIMEOUT: Final = 5.0  # seconds
_MAX_THROTTLE_KEYS: Final = 100_000  # bounds the memory that invented names can fill


class DeniedError(VeilwoodError):
    """A request is not authenticated, or its account or token lacks a right. ``is_authenticated`` says which."""

    def __init__(self, message: str, *, is_authenticated: bool = False) -> None:
        super().__init__(message)
        self.is_authenticated = is_authenticated


class TooManyError(VeilwoodError):
    """A caller exceeds a rate limit, or the service is busy."""


@dataclass(frozen=True)
class Caller:
    """Authenticated caller of a request, with the roles of the account and the scopes of the token or session."""

    name: str
    roles: frozenset[str]
    scopes: frozenset[str]
    csrf: str | None = None  # set for sessions only
    kind: str = "session"  # "session" or "token"

    def require_scope(self, scope: str) -> None:
        """Raise DeniedError if the caller lacks a scope."""
        if scope not in self.scopes:
            raise DeniedError(
                f"the account or token lacks the right {scope!r}, which this request requires.", is_authenticated=True
            )

    def require_session(self, action: str) -> None:
        """Raise DeniedError for tokens: what they create would outlive their expiry and revocation."""
        if self.kind != "session":
            raise DeniedError(f"a token cannot {action}. Hint: log in on the web page.", is_authenticated=True)


class Accounts:
    """Accounts, tokens and sessions in a database."""

    def __init__(self, database: Store, max_failures_per_minute: int = 10) -> None:
        self._database, self._max_failures_per_minute = database, max_failures_per_minute
        self._login_throttle = Throttle(60.0)
        self._hashing_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_HASHES)
        self._waiting_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_HASHES + _MAX_WAITING_LOGINS)
        self._caller_cache: dict[tuple[str, str], tuple[Caller, float]] = {}

    def create_account(self, name: str, password: str | None, roles: Iterable[str], subject: str | None = None) -> None:
        """Create an account, with a password or with the subject of an OpenID provider."""
        if not _NAME_PATTERN.fullmatch(name):
            hint = "use a lower-case letter, then up to 39 lower-case letters, digits, '.', '_' and '-'"
            raise ParameterError("name", name, "is not a valid account name", hint)
        if password is None and not subject:
            raise ParameterError("password", None, "is missing", "pass a password or the subject of an OpenID provider")
        role_names = _validate_roles(roles)
        password_hash = None if password is None else _hash_password(_validate_password(password))
        if not self._database.add(
            store.accounts,
            name=name,
            password=password_hash,
            subject=subject,
            roles=role_names,
            disabled=0,
            created=current_timestamp(),
        ):
            raise ParameterError("name", name, "is taken", "choose another name")

    def update_account(
        self,
        name: str,
        *,
        password: str | None = None,
        roles: Iterable[str] | None = None,
        disabled: bool | None = None,
    ) -> None:
        """Update an account. Every change ends all of its tokens and sessions at once."""
        values: dict[str, object] = {}
        if password is not None:
            values["password"] = _hash_password(_validate_password(password))
        if roles is not None:
            values["roles"] = _validate_roles(roles)
        if disabled is not None:
            values["disabled"] = int(disabled)
        if not values or not self._database.update(store.accounts, {"name": name}, **values):
            raise ParameterError("name", name, "is not an account, or no change was given", "list the accounts")
        self._database.remove(store.tokens, account=name)
        self._caller_cache.clear()

    def log_in(self, name: str, password: str, address: str = "") -> tuple[str, str]:
        """Check a password and return the tokens of a new session: its own and its CSRF token.

        Attempts are counted per network, for one name and for all names together. Someone who guesses from elsewhere
        therefore locks no user out.
        """
        network = network_of(address)
        limits = {
            f"{network} {name[:64]}": self._max_failures_per_minute,
            network: _ADDRESS_LIMIT_FACTOR * self._max_failures_per_minute,
        }
        for key, limit in limits.items():
            self._login_throttle.check_limit(key, limit)
        for key in limits:
            self._login_throttle.count_request(key)  # before the check, so that concurrent attempts count too
        account = self._database.find(store.accounts, name=name) if _NAME_PATTERN.fullmatch(name) else None
        stored_hash = None if account is None or account["disabled"] else account["password"]
        with self._hashing_slot():
            is_right = _is_right_password(password, stored_hash)  # takes the same time for an unknown name
        if not is_right:
            raise DeniedError("the name or the password is wrong.")
        for key in limits:
            self._login_throttle.uncount_request(key)
        return self.open_session(name)

    @contextmanager
    def _hashing_slot(self) -> Iterator[None]:
        """Wait until a password may be hashed. Raise TooManyError if many logins wait already."""
        with ExitStack() as acquired:
            for slots, seconds in ((self._waiting_slots, 0.0), (self._hashing_slots, _HASHING_TIMEOUT)):
                if not slots.acquire(timeout=seconds):
                    raise TooManyError("too many logins at this moment. Hint: try again.")
                acquired.callback(slots.release)
            yield

    def has_password(self, name: str) -> bool:
        """Return whether an account has a local password, rather than an OpenID provider only."""
        account = self._database.find(store.accounts, name=name)
        return account is not None and account["password"] is not None

    def change_password(self, caller: Caller, old: str, new: str, address: str = "") -> tuple[str, str]:
        """Change the caller's password. Ends all tokens and sessions, and returns the tokens of a new session."""
        caller.require_session("change a password")
        _validate_password(new)
        try:
            self.log_in(caller.name, old, address)
        except DeniedError:
            hint = "type the password that you logged in with"
            raise ParameterError("old", "...", "is not the current password", hint) from None
        self.update_account(caller.name, password=new)
        return self.open_session(caller.name)

    def open_session(self, name: str) -> tuple[str, str]:
        """Open a session for a user whose identity was checked; return its token and its CSRF token."""
        csrf = secrets.token_urlsafe(24)
        token, _ = self._create_token(name, "page", SCOPES, timedelta(hours=SESSION_HOURS), "session", csrf)
        return token, csrf

    def issue_token(self, caller: Caller, name: str, scopes: Iterable[str], days: int) -> tuple[str, str]:
        """Create a token with some of the caller's scopes; return the token, shown this once, and its id."""
        caller.require_session("make tokens")
        requested = frozenset(scopes)
        if not requested or not requested <= caller.scopes:
            hint = f"choose from {', '.join(sorted(caller.scopes))}"
            raise ParameterError("scopes", sorted(requested), "are more than you have", hint)
        if not 0 < days <= _MAX_TOKEN_DAYS:
            raise ParameterError("days", days, "is not a valid time to live", f"choose 1 to {_MAX_TOKEN_DAYS} days")
        return self._create_token(caller.name, name, requested, timedelta(days=days), "token")

    def create_invitation(self) -> str:
        """Return an invitation that creates the first account. It works once, within an hour."""
        return self._create_token("", "invitation", (), timedelta(hours=1), "invitation")[0]

    def accept_invitation(self, invitation: str, name: str, password: str) -> None:
        """Create the first account from an invitation. It has every role, and gives roles to other accounts."""
        stored = self._database.find(store.tokens, digest=_hash_token(invitation), kind="invitation")
        if stored is None or stored["expires"] < current_timestamp() or self._database.find_all(store.accounts):
            raise DeniedError(
                "the invitation is not known, already used or expired. Hint: restart the service for a new one."
            )
        self.create_account(name, password, ROLES)
        self._database.remove(store.tokens, kind="invitation")

    def _create_token(
        self, account: str, name: str, scopes: Iterable[str], lifetime: timedelta, kind: str, csrf: str | None = None
    ) -> tuple[str, str]:
        token, number = "vw_" + secrets.token_urlsafe(32), new_id()
        expires = (datetime.now(UTC) + lifetime).isoformat(timespec="milliseconds")
        self._database.add(
            store.tokens,
            id=number,
            account=account,
            name=name[:200],
            digest=_hash_token(token),
            scopes=" ".join(sorted(scopes)),
            kind=kind,
            csrf=csrf,
            expires=expires,
            created=current_timestamp(),
        )
        return token, number

    def find_cached_caller(self, token: str, kind: str) -> Caller | None:
        """Return the caller of a token or session that was authenticated in the last seconds, else None."""
        caller, until = self._caller_cache.get((_hash_token(token), kind), (None, 0.0))
        return caller if time.monotonic() < until else None

    def authenticate(self, token: str, kind: str) -> Caller:
        """Return the caller of a token or session, and cache it for a few seconds.

        Raises
        ------
        DeniedError
            If the token is unknown or has expired, or if the account is disabled.
        """
        caller = self._load_caller(token, kind)
        if len(self._caller_cache) >= _MAX_CACHED_CALLERS:
            self._caller_cache.clear()
        self._caller_cache[_hash_token(token), kind] = (caller, time.monotonic() + _CACHE_SECONDS)
        return caller

    def _load_caller(self, token: str, kind: str) -> Caller:
        stored = self._database.find(store.tokens, digest=_hash_token(token), kind=kind)
        if stored is None or stored["expires"] < current_timestamp():
            raise DeniedError("the token or session is not known or has expired. Hint: log in again.")
        account = self._database.find(store.accounts, name=stored["account"])
        if account is None or account["disabled"]:
            raise DeniedError("the account is disabled.")
        roles = frozenset(account["roles"].split())
        allowed = frozenset().union(*(ROLES[role] for role in roles))
        return Caller(account["name"], roles, allowed & frozenset(stored["scopes"].split()), stored["csrf"], kind)

    def log_out(self, token: str) -> None:
        """End a session."""
        self._database.remove(store.tokens, digest=_hash_token(token), kind="session")
        self._caller_cache.clear()

    def revoke_token(self, caller: Caller, number: str) -> None:
        """Revoke one of the caller's tokens; callers who manage accounts may revoke any token."""
        where = {} if "accounts" in caller.scopes else {"account": caller.name}
        if not self._database.remove(store.tokens, id=number, kind="token", **where):
            raise ParameterError("token", number, "is not known", "list your tokens")
        self._caller_cache.clear()

    def list_tokens(self, caller: Caller) -> list[DatabaseRow]:
        """List the caller's tokens by id, without the tokens themselves."""
        rows = self._database.find_all(store.tokens, account=caller.name, kind="token")
        return [{name: row[name] for name in ("id", "name", "scopes", "expires", "created")} for row in rows]


class Throttle:
    """Sliding-window rate limiter, in the memory of one process.

    Requests are counted per window. The count of the previous window is weighted by the fraction of it that lies within
    the last ``seconds``.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._counts: dict[str, tuple[float, int, int]] = {}  # start of the window, count in it, count in the previous

    def check_limit(self, key: str, limit: int) -> None:
        """Raise TooManyError if a key has reached its limit."""
        with self._lock:
            start, count, previous = self._current_window(key)
            if count + previous * (1 - (time.monotonic() - start) / self._seconds) >= limit:
                raise TooManyError("too many requests. Hint: wait a minute.")

    def count_request(self, key: str) -> None:
        """Count one request of a key."""
        with self._lock:
            if len(self._counts) > _MAX_THROTTLE_KEYS:
                self._counts.clear()
            start, count, previous = self._current_window(key)
            self._counts[key] = (start, count + 1, previous)

    def uncount_request(self, key: str) -> None:
        """Subtract a request that should not count, such as a successful login."""
        with self._lock:
            start, count, previous = self._current_window(key)
            self._counts[key] = (start, max(count - 1, 0), previous)

    def _current_window(self, key: str) -> tuple[float, int, int]:
        now = time.monotonic()
        start, count, previous = self._counts.get(key, (now, 0, 0))
        if now - start < self._seconds:
            return start, count, previous
        return (start + self._seconds, 0, count) if now - start < 2 * self._seconds else (now, 0, 0)


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address, which one household usually owns."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "elsewhere"
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


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
        hint = f"choose {_MIN_PASSWORD_LENGTH} to 1000 characters"
        raise ParameterError("password", "...", "is too short or too long", hint)
    return password


def _validate_roles(roles: Iterable[str]) -> str:
    names = sorted(set(roles))
    if not names or not set(names) <= set(ROLES):
        raise ParameterError("roles", names, "are not all known", f"choose from {', '.join(ROLES)}")
    return " ".join(names)
