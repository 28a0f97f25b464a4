# SPDX-License-Identifier: Apache-2.0
"""Accounts, roles, passwords, invitations, tokens and sessions.

Nobody sets another person's password: an account is created with an invitation, a link that works once, and its owner
chooses the password. Tokens are shown once and stored as hashes. A session of the web page is a token in an HttpOnly
cookie. Every change in a session must also send a CSRF token in a header, so that another site cannot act on behalf of
the user.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from veilwood.errors import NotFoundError, ParameterError, UseError, VeilwoodError
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
SESSION_HOURS: Final = 12
_MAX_IDLE_HOURS: Final = 2  # a session that is not used for this long ends
_INVITATION_LIFETIME: Final = timedelta(days=7)
_FIRST_INVITATION_LIFETIME: Final = timedelta(hours=1)  # printed to a terminal or a log
_MAX_TOKEN_DAYS: Final = 366
_CACHE_SECONDS: Final = 2.0  # a token revoked by another process is accepted for up to this long
_MAX_CACHED_CALLERS: Final = 10_000
_ADDRESS_LIMIT_FACTOR: Final = 5  # limit on wrong passwords per address, as a multiple of the limit per name
_MAX_KNOWN_NETWORKS: Final = 10_000


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
        """Raise DeniedError if the caller uses a token: anything that it created would outlive the token."""
        if self.kind != "session":
            raise DeniedError(
                f"a token cannot {action}. Hint: log in on the web page or with veilwood remote.", is_authenticated=True
            )


class RateLimit:
    """Limit on the number of requests per key and minute, counted in the memory of one process."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._limiter = FixedWindowRateLimiter(self._storage)

    def count(self, key: str, limit: int) -> None:
        """Count a request. Raise TooManyError if the key has reached its limit."""
        if not self._limiter.hit(RateLimitItemPerMinute(limit), key):
            raise TooManyError("too many requests. Hint: wait a minute.")

    def uncount(self, key: str, limit: int) -> None:
        """Subtract a request that should not count, such as a successful login."""
        self._storage.decr(RateLimitItemPerMinute(limit).key_for(key))


class Accounts:
    """Accounts, invitations, tokens and sessions in a database."""

    def __init__(self, database: Store, max_failures_per_minute: int = 10) -> None:
        self._database, self._max_failures_per_minute = database, max_failures_per_minute
        self._hasher, self._failures = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1), RateLimit()
        self._unknown_hash = self._hasher.hash(secrets.token_urlsafe())
        self._known_networks: OrderedDict[str, None] = OrderedDict()  # with an earlier login
        self._caller_cache: dict[tuple[str, str], tuple[Caller, float]] = {}

    # -- accounts and invitations -----------------------------------------------------------------------------------

    def invite(self, by: str, name: str, roles: Iterable[str] | None = None, subject: str | None = None) -> str | None:
        """Create an account if it is new; return an invitation with which its owner sets a password.

        Users of an OpenID provider have a subject instead, and get no invitation.
        """
        with self._database.transaction():
            if self._database.find(store.accounts, name=name) is None:
                if roles is None:
                    raise NotFoundError("account", name)
                if not _NAME_PATTERN.fullmatch(name):
                    hint = "use a lower-case letter, then up to 39 lower-case letters, digits, '.', '_' and '-'"
                    raise ParameterError("name", name, "is not a valid account name", hint)
                role_names = _validate_roles(roles)
                if not self._database.add(store.accounts, name=name, roles=role_names, subject=subject, disabled=0):
                    raise ParameterError("subject", "...", "belongs to another account", "check the subject")
                self._database.record_event(by, "account.create", name, roles=role_names)
            elif roles is not None:
                raise ParameterError("name", name, "is taken", "choose another name, or invite the account again")
            if subject is not None:
                return None
            self._database.remove(store.tokens, account=name, kind="invitation")
            self._database.record_event(by, "account.invite", name)
            return self._create_token(name, "invitation", (), _INVITATION_LIFETIME, "invitation")[0]

    def invite_first(self) -> str:
        """Return an invitation that creates the first account, with every role. It works once, within an hour."""
        return self._create_token("", "invitation", (), _FIRST_INVITATION_LIFETIME, "invitation")[0]

    def accept_invitation(self, invitation: str, password: str, name: str | None = None) -> str:
        """Set the password of the invited account, end its tokens and sessions, and return its name.

        The invitation of the first account needs a name.
        """
        hashed = self._hash_password(password)
        unknown = DeniedError(
            "the invitation is unknown, already used or expired. Hint: ask an operator for a new invitation."
        )
        with self._database.transaction():
            where = {"digest": _hash_token(invitation), "kind": "invitation"}
            stored = self._database.find(store.tokens, **where)
            # The invitation is removed first: of several concurrent requests, only one succeeds.
            if not self._database.remove(store.tokens, **where) or stored is None or _is_over(stored):
                raise unknown
            if not stored["account"]:
                if self._database.find_all(store.accounts):
                    raise unknown
                self.invite("", name or "", ROLES)
            name = stored["account"] or name or ""
            self._end_access(name)
            self._database.update(store.accounts, {"name": name}, password=hashed)
            self._database.record_event(name, "account.accept", name)
        return name

    def update_account(
        self, by: str, name: str, roles: Iterable[str] | None = None, disabled: bool | None = None
    ) -> None:
        """Change the roles of another account, disable it or enable it. Ends all of its tokens and sessions.

        Raises
        ------
        UseError
            If the account is the caller's own, or if no enabled operator would be left.
        """
        if name == by:
            raise UseError("operators cannot change the roles of their own account. Hint: ask another operator.")
        values: dict[str, object] = {} if roles is None else {"roles": _validate_roles(roles)}
        values |= {} if disabled is None else {"disabled": int(disabled)}
        with self._database.transaction():
            if not values or not self._database.update(store.accounts, {"name": name}, **values):
                raise NotFoundError("account", name)
            enabled = self._database.find_all(store.accounts, disabled=0)
            able = [account for account in enabled if account["password"] or account["subject"]]
            if not any("operator" in account["roles"].split() for account in able):
                raise UseError("the last operator cannot be removed. Hint: make another account an operator first.")
            self._end_access(name)
            self._database.record_event(by, "account.change", name, **values)

    def _end_access(self, name: str) -> None:
        self._database.remove(store.tokens, account=name)
        self._caller_cache.clear()

    # -- passwords and sessions ---------------------------------------------------------------------------------------

    def log_in(self, name: str, password: str, address: str = "") -> tuple[str, str]:
        """Check a password and return the tokens of a new session: its own and its CSRF token.

        Attempts are counted per network, both for each name and for all names together. Guessing passwords from another
        network therefore locks no user out.
        """
        network = network_of(address)
        limits = {
            f"{network} {name[:64]}": self._max_failures_per_minute,
            network: _ADDRESS_LIMIT_FACTOR * self._max_failures_per_minute,
        }
        for key, limit in limits.items():
            self._failures.count(key, limit)
        account = self._database.find(store.accounts, name=name) if _NAME_PATTERN.fullmatch(name) else None
        stored_hash = None if account is None or account["disabled"] else account["password"]
        is_right = self._is_right_password(password, stored_hash)  # takes the same time for an unknown name
        if not is_right or stored_hash is None:
            subject = name if account is not None else ""  # the typed name may be a password
            self._database.record_event("", "session.refuse", subject, network=network)
            raise DeniedError("the name or the password is wrong.")
        for key, limit in limits.items():
            self._failures.uncount(key, limit)
        self._known_networks[network] = None
        self._known_networks.move_to_end(network)
        if len(self._known_networks) > _MAX_KNOWN_NETWORKS:
            self._known_networks.popitem(last=False)
        if self._hasher.check_needs_rehash(stored_hash):  # the stored hash has weaker parameters
            self._database.update(store.accounts, {"name": name}, password=self._hasher.hash(password))
        return self.open_session(name, network)

    def is_known(self, address: str) -> bool:
        """Return True if there was an earlier login from the network of an address."""
        return network_of(address) in self._known_networks

    def _is_right_password(self, password: str, stored_hash: str | None) -> bool:
        try:
            return self._hasher.verify(stored_hash or self._unknown_hash, password)
        except (Argon2Error, InvalidHashError):
            return False

    def _hash_password(self, password: str) -> str:
        if not _MIN_PASSWORD_LENGTH <= len(password) <= 1000:
            hint = f"choose {_MIN_PASSWORD_LENGTH} to 1000 characters"
            raise ParameterError("password", "...", "is too short or too long", hint)
        return self._hasher.hash(password)

    def set_random_password(self, name: str) -> str:
        """Give an account a random password and return it, for a demonstration on this machine."""
        password = secrets.token_urlsafe()
        self._database.update(store.accounts, {"name": name}, password=self._hasher.hash(password))
        return password

    def has_password(self, name: str) -> bool:
        """Return True if an account has a local password. Users of an OpenID provider have none."""
        account = self._database.find(store.accounts, name=name)
        return account is not None and account["password"] is not None

    def change_password(self, caller: Caller, old: str, new: str, address: str = "") -> tuple[str, str]:
        """Change the caller's password. Ends all tokens and sessions, and returns the tokens of a new session."""
        caller.require_session("change a password")
        hashed = self._hash_password(new)
        try:
            self.log_in(caller.name, old, address)
        except DeniedError:
            hint = "type the password that you logged in with"
            raise ParameterError("old", "...", "is not the current password", hint) from None
        with self._database.transaction():
            self._end_access(caller.name)
            self._database.update(store.accounts, {"name": caller.name}, password=hashed)
            self._database.record_event(caller.name, "account.password", caller.name)
        return self.open_session(caller.name)

    def open_session(self, name: str, network: str = "") -> tuple[str, str]:
        """Open a session for a user whose identity was checked; return its token and its CSRF token."""
        csrf = secrets.token_urlsafe(24)
        with self._database.transaction() as connection:
            connection.execute(store.tokens.delete().where(store.tokens.c.expires < current_timestamp()))
            token, _ = self._create_token(name, "page", SCOPES, timedelta(hours=_MAX_IDLE_HOURS), "session", csrf)
            self._database.record_event(name, "session.open", name, network=network)
        return token, csrf

    def log_out(self, caller: Caller, token: str) -> None:
        """End a session."""
        self._database.remove(store.tokens, digest=_hash_token(token), kind="session")
        self._database.record_event(caller.name, "session.end", caller.name)
        self._caller_cache.clear()

    # -- tokens -------------------------------------------------------------------------------------------------------

    def issue_token(self, caller: Caller, name: str, scopes: Iterable[str], days: int) -> tuple[str, str]:
        """Create a token with some of the caller's scopes; return the token, which is shown only once, and its id."""
        caller.require_session("make tokens")
        requested = frozenset(scopes)
        if not requested or not requested <= caller.scopes:
            hint = f"choose from {', '.join(sorted(caller.scopes))}"
            raise ParameterError("scopes", sorted(requested), "include a right that you lack", hint)
        if not 0 < days <= _MAX_TOKEN_DAYS:
            raise ParameterError("days", days, "is not a valid time to live", f"choose 1 to {_MAX_TOKEN_DAYS} days")
        with self._database.transaction():
            token, number = self._create_token(caller.name, name, requested, timedelta(days=days), "token")
            self._database.record_event(caller.name, "token.create", number, scopes=sorted(requested))
        return token, number

    def revoke_token(self, caller: Caller, number: str) -> None:
        """Revoke a token or session. Requires a session, and the right to manage accounts unless the caller owns it."""
        caller.require_session("revoke tokens")
        where = {} if "accounts" in caller.scopes else {"account": caller.name}
        if not self._database.remove(store.tokens, id=number, kind=("token", "session"), **where):
            raise NotFoundError("token", number)
        self._database.record_event(caller.name, "token.revoke", number)
        self._caller_cache.clear()

    def list_tokens(self, caller: Caller) -> list[DatabaseRow]:
        """List the caller's tokens and sessions by id, without the tokens themselves."""
        rows = self._database.find_all(store.tokens, account=caller.name, kind=("token", "session"))
        return [row for row in rows if not _is_over(row)]

    def _create_token(
        self, account: str, name: str, scopes: Iterable[str], lifetime: timedelta, kind: str, csrf: str | None = None
    ) -> tuple[str, str]:
        token, number = "vw_" + secrets.token_urlsafe(32), new_id()
        self._database.add(
            store.tokens,
            id=number,
            account=account,
            name=name[:200],
            digest=_hash_token(token),
            scopes=" ".join(sorted(scopes)),
            kind=kind,
            csrf=csrf,
            expires=_in_future(lifetime),
        )
        return token, number

    def find_cached_caller(self, token: str, kind: str) -> Caller | None:
        """Return the caller of a token or session that was authenticated in the last few seconds, or None."""
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
        if stored is None or _is_over(stored):
            raise DeniedError("the token or session is unknown or has expired. Hint: log in again.")
        account = self._database.find(store.accounts, name=stored["account"])
        if account is None or account["disabled"]:
            raise DeniedError("the account is disabled.")
        if kind == "session":
            self._extend_session(stored)
        roles = frozenset(account["roles"].split())
        allowed = frozenset().union(*(ROLES[role] for role in roles))
        return Caller(account["name"], roles, allowed & frozenset(stored["scopes"].split()), stored["csrf"], kind)

    def _extend_session(self, stored: DatabaseRow) -> None:
        """Extend a session that is in use, up to its maximum duration since it was opened."""
        end = datetime.fromisoformat(stored["created"]) + timedelta(hours=SESSION_HOURS)
        expires = min(_in_future(timedelta(hours=_MAX_IDLE_HOURS)), end.isoformat(timespec="microseconds"))
        if expires[:16] > stored["expires"][:16]:  # at most one write per minute, not one per request
            self._database.update(store.tokens, {"id": stored["id"]}, expires=expires)


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address, which one household usually owns."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "elsewhere"
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


def _in_future(lifetime: timedelta) -> str:
    return (datetime.now(UTC) + lifetime).isoformat(timespec="microseconds")


def _is_over(stored: DatabaseRow) -> bool:
    return bool(stored["expires"] < current_timestamp())


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _validate_roles(roles: Iterable[str]) -> str:
    names = sorted(set(roles))
    if not names or not set(names) <= set(ROLES):
        raise ParameterError("roles", names, "include an unknown role", f"choose from {', '.join(ROLES)}")
    return " ".join(names)
