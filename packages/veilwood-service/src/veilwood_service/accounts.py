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
from veilwood_service.store import Record, Store, new_id, now

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

_NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}")
_SHORTEST_PASSWORD: Final = 12
_SCRYPT: Final = {"n": 2**14, "r": 8, "p": 5}  # 16 MiB and a twentieth of a second for each guess
_SESSION_HOURS: Final = 12
_LONGEST_TOKEN_DAYS: Final = 366
_KNOWN_SECONDS: Final = 2.0  # a token that another process takes back works that much longer
_MOST_KNOWN: Final = 10_000
_NAMES_A_PLACE: Final = 5  # times as many wrong passwords for all names together, from one place
_MOST_HASHING: Final = 2  # passwords at once, so that guesses leave room for other work
_MOST_WAITING: Final = 8  # for their turn; each of them holds a thread that others need
_HASHING_SECONDS: Final = 5.0


class DeniedError(VeilwoodError):
    """Nobody known, or somebody who may not do this."""

    def __init__(self, message: str, *, known: bool) -> None:
        super().__init__(message)
        self.known = known


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

    def require(self, scope: str) -> None:
        """Refuse who may not."""
        if scope not in self.scopes:
            raise DeniedError(f"this needs the right {scope!r}, which the account or the token lacks.", known=True)

    def require_session(self, what: str) -> None:
        """Refuse tokens: what they make would outlive their end, and outlive being taken back."""
        if self.kind != "session":
            raise DeniedError(f"a token cannot {what}. Hint: log in on the page and do it there.", known=True)


class Accounts:
    """The accounts in a store."""

    def __init__(self, records: Store, wrong_a_minute: int = 10) -> None:
        self._records, self._wrong_a_minute = records, wrong_a_minute
        self._tries = Throttle(60.0)
        self._hashing = threading.BoundedSemaphore(_MOST_HASHING)
        self._waiting = threading.BoundedSemaphore(_MOST_HASHING + _MOST_WAITING)
        self._known: dict[tuple[str, str], tuple[Caller, float]] = {}

    def create(self, name: str, password: str | None, roles: Iterable[str], subject: str | None = None) -> None:
        """Make an account; a password of a local one, a subject of one that an OpenID provider vouches for."""
        if not _NAME.fullmatch(name):
            raise ParameterError("name", name, "is not a name", "up to 40 small letters, digits, '.', '_' and '-'")
        if password is None and not subject:
            raise ParameterError("password", None, "is missing", "a password, or the subject of an OpenID provider")
        chosen = _checked_roles(roles)
        hashed = None if password is None else _hash(_checked_password(password))
        if not self._records.add(
            store.accounts, name=name, password=hashed, subject=subject, roles=chosen, disabled=0, created=now()
        ):
            raise ParameterError("name", name, "is taken", "choose another")

    def change(
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
            values["password"] = _hash(_checked_password(password))
        if roles is not None:
            values["roles"] = _checked_roles(roles)
        if disabled is not None:
            values["disabled"] = int(disabled)
        if not values or not self._records.change(store.accounts, {"name": name}, **values):
            raise ParameterError("name", name, "is not an account, or nothing was to be changed", "see the accounts")
        self._records.remove(store.tokens, account=name)
        self._known.clear()

    def log_in(self, name: str, password: str, address: str = "") -> tuple[str, str]:
        """Return the word of a new session and the one that its changes must repeat.

        Tries are counted by where they come from, for one name and for all: whoever guesses elsewhere keeps nobody out.
        """
        place = network_of(address)
        limits = {f"{place} {name[:64]}": self._wrong_a_minute, place: _NAMES_A_PLACE * self._wrong_a_minute}
        for who, most in limits.items():
            self._tries.check(who, most)
        for who in limits:
            self._tries.count(who)  # before the password is looked at: many at once are counted, too
        found = self._records.find(store.accounts, name=name) if _NAME.fullmatch(name) else None
        kept = None if found is None or found["disabled"] else found["password"]
        with self._turn():
            right = _matches(password, kept)  # takes the same time for a name that is not known
        if not right:
            raise DeniedError("the name or the password is wrong.", known=False)
        for who in limits:
            self._tries.forget(who)
        return self.open_session(name)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until a password can be hashed, or refuse where many wait already."""
        with ExitStack() as held:
            for place, seconds in ((self._waiting, 0.0), (self._hashing, _HASHING_SECONDS)):
                if not place.acquire(timeout=seconds):
                    raise TooManyError("too many people log in at this moment. Hint: try again.")
                held.callback(place.release)
            yield

    def has_password(self, name: str) -> bool:
        """Whether somebody has one here, or comes from an OpenID provider alone."""
        found = self._records.find(store.accounts, name=name)
        return found is not None and found["password"] is not None

    def change_password(self, caller: Caller, old: str, new: str, address: str = "") -> tuple[str, str]:
        """Change one's own password, by the one that was; return a new session, as all others and all tokens end."""
        caller.require_session("change a password")
        _checked_password(new)
        try:
            self.log_in(caller.name, old, address)
        except DeniedError:
            raise ParameterError("old", "...", "is not the password", "type the one that you logged in with") from None
        self.change(caller.name, password=new)
        return self.open_session(caller.name)

    def open_session(self, name: str) -> tuple[str, str]:
        """Start a session of the page for somebody whose identity was checked."""
        csrf = secrets.token_urlsafe(24)
        word, _ = self._issue(name, "page", SCOPES, timedelta(hours=_SESSION_HOURS), "session", csrf)
        return word, csrf

    def issue_token(self, caller: Caller, name: str, scopes: Iterable[str], days: int) -> tuple[str, str]:
        """Return a new token, which is shown this once, and its number. It can do no more than who asks for it."""
        caller.require_session("make tokens")
        wanted = frozenset(scopes)
        if not wanted or not wanted <= caller.scopes:
            raise ParameterError("scopes", sorted(wanted), "are more than you have", ", ".join(sorted(caller.scopes)))
        if not 0 < days <= _LONGEST_TOKEN_DAYS:
            raise ParameterError("days", days, "is not a time to live", f"1 to {_LONGEST_TOKEN_DAYS}")
        return self._issue(caller.name, name, wanted, timedelta(days=days), "token")

    def invite(self) -> str:
        """Return a word by which one person can make the first account, once, within an hour."""
        return self._issue("", "invitation", (), timedelta(hours=1), "invitation")[0]

    def accept(self, word: str, name: str, password: str) -> None:
        """Make the first account by an invitation: it may do everything, and gives roles to others."""
        found = self._records.find(store.tokens, digest=_digest(word), kind="invitation")
        if found is None or found["expires"] < now() or self._records.every(store.accounts):
            raise DeniedError(
                "the invitation is not known, used or too old. Hint: start the service again.", known=False
            )
        self.create(name, password, ROLES)
        self._records.remove(store.tokens, kind="invitation")

    def _issue(
        self, account: str, name: str, scopes: Iterable[str], life: timedelta, kind: str, csrf: str | None = None
    ) -> tuple[str, str]:
        word, number = "vw_" + secrets.token_urlsafe(32), new_id()
        expires = (datetime.now(UTC) + life).isoformat(timespec="milliseconds")
        self._records.add(
            store.tokens,
            id=number,
            account=account,
            name=name[:200],
            digest=_digest(word),
            scopes=" ".join(sorted(scopes)),
            kind=kind,
            csrf=csrf,
            expires=expires,
            created=now(),
        )
        return word, number

    def known(self, word: str, kind: str) -> Caller | None:
        """Return whose token or session a word is, if that was looked up in the last moments."""
        caller, until = self._known.get((_digest(word), kind), (None, 0.0))
        return caller if time.monotonic() < until else None

    def who(self, word: str, kind: str) -> Caller:
        """Return whose token or session a word is, and remember it for a moment."""
        caller = self._look_up(word, kind)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[_digest(word), kind] = (caller, time.monotonic() + _KNOWN_SECONDS)
        return caller

    def _look_up(self, word: str, kind: str) -> Caller:
        found = self._records.find(store.tokens, digest=_digest(word), kind=kind)
        if found is None or found["expires"] < now():
            raise DeniedError("the token or session is not known or has expired. Hint: log in again.", known=False)
        account = self._records.find(store.accounts, name=found["account"])
        if account is None or account["disabled"]:
            raise DeniedError("the account is disabled.", known=False)
        roles = frozenset(account["roles"].split())
        allowed = frozenset().union(*(ROLES[role] for role in roles))
        return Caller(account["name"], roles, allowed & frozenset(found["scopes"].split()), found["csrf"], kind)

    def log_out(self, word: str) -> None:
        """End a session."""
        self._records.remove(store.tokens, digest=_digest(word), kind="session")
        self._known.clear()

    def revoke(self, caller: Caller, number: str) -> None:
        """Take a token back: one's own, or anybody's by who manages accounts."""
        where = {} if "accounts" in caller.scopes else {"account": caller.name}
        if not self._records.remove(store.tokens, id=number, kind="token", **where):
            raise ParameterError("token", number, "is not known", "see the tokens")
        self._known.clear()

    def tokens(self, caller: Caller) -> list[Record]:
        """List one's tokens, without their words."""
        found = self._records.every(store.tokens, account=caller.name, kind="token")
        return [{name: one[name] for name in ("id", "name", "scopes", "expires", "created")} for one in found]


class Throttle:
    """How often each caller came lately; in memory of one process.

    Counts by period: what came in the last one is weighed by how much of it is still within reach.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._counts: dict[str, tuple[float, int, int]] = {}  # when a period began, how many came in it and before

    def check(self, who: str, most: int) -> None:
        """Refuse who came too often."""
        with self._lock:
            began, count, before = self._recent(who)
            if count + before * (1 - (time.monotonic() - began) / self._seconds) >= most:
                raise TooManyError("too many requests. Hint: wait a minute.")

    def count(self, who: str) -> None:
        """Remember that somebody came."""
        with self._lock:
            if len(self._counts) > 100_000:
                self._counts.clear()
            began, count, before = self._recent(who)
            self._counts[who] = (began, count + 1, before)

    def forget(self, who: str) -> None:
        """Take back one that was counted, and turned out to be welcome."""
        with self._lock:
            began, count, before = self._recent(who)
            self._counts[who] = (began, max(count - 1, 0), before)

    def _recent(self, who: str) -> tuple[float, int, int]:
        now = time.monotonic()
        began, count, before = self._counts.get(who, (now, 0, 0))
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


def _digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def _hash(password: str) -> str:
    salt = secrets.token_bytes(16)
    return f"{base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(password, salt)).decode()}"


def _matches(password: str, kept: str | None) -> bool:
    salt, expected = (base64.b64decode(part) for part in (kept or _NOBODY).split("$"))
    return hmac.compare_digest(_scrypt(password, salt), expected) and kept is not None


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=64 << 20, **_SCRYPT)


_NOBODY: Final = _hash(secrets.token_urlsafe())


def _checked_password(password: str) -> str:
    if not _SHORTEST_PASSWORD <= len(password) <= 1000:
        raise ParameterError("password", "...", "is too short or too long", f"{_SHORTEST_PASSWORD} letters or more")
    return password


def _checked_roles(roles: Iterable[str]) -> str:
    chosen = sorted(set(roles))
    if not chosen or not set(chosen) <= set(ROLES):
        raise ParameterError("roles", chosen, "are not known", f"some of {', '.join(ROLES)}")
    return " ".join(chosen)
