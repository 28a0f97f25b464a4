# SPDX-License-Identifier: Apache-2.0
"""Ledgers of the service: one per data set, in the database of its records.

Every charge has a key, an account and a grant (the signed plan). Allowances (per account and period) and signatures
limit the total of some of the charges in this ledger. A run reserves its loss before any row is read, and its ledger
entry is committed in the transaction that publishes its outcome (proofs/service.md).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from veilwood.errors import BudgetExceededError, LedgerError, NotFoundError
from veilwood.privacy import ledger as ledgers
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.hash_chain import ChainedLedger, Connection, HashChain, append_genesis, store_balance
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.safe_io import read_json, write_file
from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import DatabaseRow, Store, current_timestamp

_LEDGER_TABLES: Final = re.compile(r"\b(events|balance)\b")
_CERTIFICATE_KEY: Final = re.compile(r"certificate (\d+) [0-9a-f]{64}")


@dataclass(frozen=True)
class _LedgerConnection:
    """Connection on which the tables ``events`` and ``balance`` are those of one data set."""

    connection: sa.Connection
    dataset: str
    on_write: Callable[[], None]

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> Any:
        if query.startswith("INSERT"):
            self.on_write()
        query = _LEDGER_TABLES.sub(rf"ledger_\1_{self.dataset}", query)
        if self.connection.dialect.name == "postgresql":
            query = query.replace("?", "%s")
        return _Rows(self.connection.exec_driver_sql(query, tuple(parameters)))


class _Rows:
    """Rows of a statement, as tuples."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def fetchone(self) -> tuple[Any, ...] | None:
        row = self._result.fetchone()
        return None if row is None else tuple(row)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(tuple, self._result)


class DatasetLedger(ChainedLedger):
    """Ledger of one data set. Verified events stay in memory, so a request reads only newer events."""

    def __init__(self, database: Store, dataset: str) -> None:
        self.name, self.database, self._dataset = f"ledger {dataset}", database, dataset
        self._chain, self._lock = HashChain(self.name), threading.RLock()

    @contextmanager
    def _open_transaction(self, write: bool = False) -> Iterator[Connection]:
        """Open a transaction on the events of this data set, or join the one that this thread has open.

        The lock keeps verified events and snapshots in step. Readers take it before their snapshot. Writers take it
        after the lock of the database and hold it until they have committed, so the two locks never wait for each
        other.
        """
        with self._translate_errors(write, sa.exc.SQLAlchemyError):
            if write or self.database.is_writing():
                with self.database.transaction() as connection:
                    locked = sa.select(store.datasets.c.name).where(store.datasets.c.name == self._dataset)
                    connection.execute(locked.with_for_update())
                    self.database.hold(self._lock)
                    yield _LedgerConnection(connection, self._dataset, self._forget_on_rollback)
            else:
                with self._lock, self.database.snapshot() as connection:
                    yield _LedgerConnection(connection, self._dataset, self._forget_on_rollback)

    def _forget_on_rollback(self) -> None:
        """Clear the events in memory if the open transaction is rolled back, because some may then not exist."""
        self.database.on_rollback(lambda: setattr(self, "_chain", HashChain(self.name)))

    def _reserve_loss(
        self, loss: Loss, facts: Mapping[str, Any], limits: Sequence[ledgers.Limit]
    ) -> ledgers.Reservation:
        with self._open_transaction(write=True):
            if facts["purpose"].kind != ledgers.RECONCILIATION:
                self.require_chargeable()
            return super()._reserve_loss(loss, facts, limits)

    def require_chargeable(self) -> None:
        """Raise LedgerError if the data set is frozen or retired."""
        dataset = self.database.find(store.datasets, name=self._dataset)
        if dataset is None or dataset["retired"]:
            raise LedgerError(f"the data set {self._dataset} is retired. Hint: choose another data set.")
        if dataset["frozen"] is not None:
            raise LedgerError(
                f"{self.name} is frozen: {json.loads(dataset['frozen'])['reason']}. Hint: ask a custodian to charge "
                "the certificates issued since, and to thaw it."
            )

    def _is_intact(self, connection: Connection) -> bool:
        return True  # the database checks its own files

    def create(self, epsilon: object, delta: object, population: str, existing: str | None = None) -> None:
        """Create the ledger, or copy an existing ledger with the same budget. Call it while registering the data set.

        Raises
        ------
        LedgerError
            If the existing ledger has another budget or population, or does not verify.
        """
        budget = ledgers.requested_budget(epsilon, delta or 0)
        integer = "BIGINT" if self.database.is_postgres else "INTEGER"
        with self._open_transaction(write=True) as connection:
            connection.execute(
                f"CREATE TABLE events (number {integer} PRIMARY KEY, entry {integer} NOT NULL, body TEXT NOT NULL, "
                "hash TEXT NOT NULL)"
            )
            connection.execute("CREATE TABLE balance (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)")
            if existing is None:
                append_genesis(connection, budget, population)
                return
            source = open_ledger(existing)
            if not isinstance(source, ChainedLedger) or source.budget != budget:
                raise LedgerError(f"{source.name} has the budget {source.budget}, not {budget}. Hint: pass its budget.")
            source.verify()
            for event in source.events():
                connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", event)
            store_balance(connection, source.balance())


class Ledgers:
    """Ledgers of all data sets, opened once per process."""

    def __init__(self, settings: Settings, database: Store) -> None:
        self._settings, self._database = settings, database
        self._ledgers: dict[str, DatasetLedger] = {}

    def open(self, dataset: str) -> DatasetLedger:
        """Return the ledger of a data set."""
        return self._ledgers.setdefault(dataset, DatasetLedger(self._database, dataset))

    def limits_for(self, dataset: str, account: str, plan: DatabaseRow | None = None) -> list[ledgers.Limit]:
        """Return the limits on a charge to this account: its allowances and, if given, the grant of a signed plan."""
        rows = self._database.find_all(store.allowances, dataset=dataset)
        limits = [limit_of(allowance) for allowance in rows if allowance["account"] in ("", account)]
        return limits if plan is None else [*limits, grant_of(plan)]

    def remaining_for(self, dataset: str, account: str, plan: DatabaseRow | None = None) -> Loss | None:
        """Return the remaining budget of an account: the smallest epsilon over the ledger and all limits."""
        ledger = self.open(dataset)
        balances = [
            ledger.balance(),
            *(ledger.part_balance(limit) for limit in self.limits_for(dataset, account, plan)),
        ]
        remaining = [loss for balance in balances if (loss := balance.remaining) is not None]
        return min(remaining, key=lambda loss: loss.epsilon or 0, default=None)

    def note_heads(self) -> None:
        """Write the last event of every ledger to a file outside the database, to detect an older copy of it later."""
        heads = {row["name"]: self.open(row["name"]).head() for row in self._database.find_all(store.datasets)}
        write_file(self._settings.ledger_heads, json.dumps(heads).encode())

    def freeze_older_copies(self) -> list[str]:
        """Freeze every ledger that lacks its last noted event: the database is an older copy. Called at the start."""
        try:
            heads: dict[str, Any] = json.loads(self._settings.ledger_heads.read_text())
        except (FileNotFoundError, ValueError):
            return []
        known = [row["name"] for row in self._database.find_all(store.datasets)]
        older = [name for name in known if name in heads and not self.open(name).has_event(*heads[name])]
        for name in older:
            self.freeze(name, "an older copy of the database was restored", noted=int(heads[name][0]))
        return older

    def freeze(self, dataset: str, reason: str, noted: int = 0) -> None:
        """Freeze a ledger: nothing is charged until a custodian thaws it. Ends the data set's unfinished runs.

        ``noted`` is the number of an event that is known to be lost.
        """
        with self._database.transaction():
            ledger = self.open(dataset)
            number, n_open = ledger.head()[0], sum(entry.state == "reserved" for entry in ledger.entries())
            frozen = {"reason": reason, "head": number, "open": n_open, "noted": noted}
            if self._database.update(store.datasets, {"name": dataset, "frozen": None}, frozen=json.dumps(frozen)):
                self._database.record_event("", "ledger.freeze", dataset, reason=reason)
            end_unfinished_runs(self._database, ledger, dataset)

    def charge_certificates(self, dataset: str, account: str, certificates: Sequence[dict[str, Any]]) -> list[int]:
        """Charge every certificate whose event the ledger lacks, and return the new entries. Each is charged once.

        Raises
        ------
        LedgerError
            If a certificate is malformed or of another ledger, or if it exceeds the budget. In the last case, the
            ledger is frozen, because its total is then too small.
        """
        ledger, charged = self.open(dataset), list[int]()
        losses = {entry.plan: entry.loss for entry in ledger.entries()}
        parsed = [_parse_certificate(facts, ledger) for facts in certificates]
        for certificate, number, digest in parsed:
            if ledger.has_event(number, digest):
                continue
            bound = loss_from_certificate(certificate.epsilon, certificate.delta or 0)
            loss = losses.get(certificate.plan_hash, bound)
            neighbours = _describe_neighbours(certificate)
            key, plan = f"certificate {number} {digest}", certificate.plan_hash
            new = self._charge_lost(dataset, f"certificate of event {number}", loss, neighbours, account, key, plan)
            charged += [] if new is None else [new]
        return charged

    def thaw(self, dataset: str, account: str, reason: str, missing: Loss | None) -> None:
        """Thaw a frozen ledger, after charging a bound on the loss of all releases without a certificate.

        Raises
        ------
        LedgerError
            If event numbers have a gap that no certificate explains, and ``missing`` is None.
        """
        record = self._database.find(store.datasets, name=dataset)
        if record is None or record["frozen"] is None:
            raise LedgerError(
                f"the data set {dataset} is not frozen. Hint: charge its certificates instead; that needs no freeze."
            )
        frozen, ledger = json.loads(record["frozen"]), self.open(dataset)
        keys = [match for entry in ledger.entries() if (match := _CERTIFICATE_KEY.fullmatch(entry.key))]
        later = [number for match in keys if (number := int(match[1])) > frozen["head"]]
        # A release writes two events, its charge and its settlement. A reservation that was open writes one more.
        gap = max([frozen["head"], frozen["noted"], *later]) - frozen["head"] - 2 * len(later) - frozen["open"]
        if gap > 0 and missing is None:
            raise LedgerError(
                f"{gap} events of {ledger.name} after this copy are not explained by any certificate. Hint: upload the "
                "certificates of all releases since, or bound the loss of the missing ones with missing_epsilon."
            )
        if missing is not None:
            counted = (entry.neighbours for entry in ledger.entries() if entry.is_counted)
            neighbours = next(counted, "one row, added or removed")
            self._charge_lost(dataset, f"releases without a certificate: {reason}", missing, neighbours, account)
        with self._database.transaction():
            self._database.update(store.datasets, {"name": dataset}, frozen=None)
            bound = "0" if missing is None else str(missing)
            self._database.record_event(account, "ledger.thaw", dataset, reason=reason, missing=bound)

    def _charge_lost(
        self, dataset: str, what: str, loss: Loss, neighbours: str, account: str, key: str = "", plan: str = ""
    ) -> int | None:
        """Charge a release that a restored ledger has lost; return the new entry, or None if it was charged before."""
        ledger, purpose = self.open(dataset), ledgers.Purpose(ledgers.RECONCILIATION)
        facts: dict[str, Any] = {"what": what, "neighbours": neighbours, "plan": plan, "key": key, "account": account}
        try:
            with self._database.transaction():
                charge = ledger.reserve(loss, **facts, purpose=purpose)
                if not charge.is_new:
                    return None
                charge.commit()
                self._database.record_event(account, "ledger.charge", dataset, what=what, loss=str(loss))
        except BudgetExceededError as error:
            self.freeze(dataset, "releases that were made exceed the budget")
            raise LedgerError(
                f"the budget of {ledger.name} cannot hold a release already made, so the ledger is frozen. Hint: "
                "restore the newest copy, or retire the data set."
            ) from error
        return charge.id


class RunLedger(ledgers.Ledger):
    """Ledger of one run: it charges once under the key of the run, and commits when its outcome is published.

    Parameters
    ----------
    ledger : DatasetLedger
        Ledger of the data set.
    key, account : str
        Key of the run, and the account that is charged.
    plan : mapping
        The signed plan.
    limits : sequence of Limit
        Limits of the account and the signature.
    require_active : callable
        Raises an error if the run has ended or belongs to another worker. Called in the transaction of the charge.
    """

    def __init__(
        self,
        ledger: DatasetLedger,
        key: str,
        account: str,
        plan: DatabaseRow,
        limits: Sequence[ledgers.Limit],
        require_active: Any = lambda: None,
    ) -> None:
        self.name, self._ledger, self._key = ledger.name, ledger, key
        self._facts = {"key": key, "account": account, "grant": plan["id"], "table": plan["dataset"]}
        self._limits, self._require_active = limits, require_active
        self.reservation: ledgers.Reservation | None = None

    def _reserve_loss(
        self, loss: Loss, facts: Mapping[str, Any], limits: Sequence[ledgers.Limit]
    ) -> ledgers.Reservation:
        """Reserve a loss, or resume the reservation of an earlier attempt under the same key."""
        with self._ledger.database.transaction():
            self._require_active()
            granted = self._ledger.reserve(loss, **{**facts, **self._facts}, limits=self._limits)
        self.reservation = ledgers.Reservation(self, granted.id, granted.is_new)
        return self.reservation

    def settle(self, entry: int, state: ledgers.FinalState, reason: str | None = None) -> None:
        """Return the charge if the input was rejected. A commit is deferred to ``publish``.

        A reservation of an earlier attempt is never returned, because that attempt may have drawn noise.
        """
        if state == "cancelled" and self.reservation is not None and self.reservation.is_new:
            self._ledger.settle(entry, "cancelled", reason)
            self.reservation = None
        elif state != "committed":
            self._ledger.settle(entry, "resolved", reason or "refused after an earlier attempt")

    def publish(self) -> None:
        """Commit the charge, inside the transaction that publishes the outcome.

        Raises LedgerError if another attempt has cancelled the charge: its outcome may not be published.
        """
        assert self.reservation is not None
        with self._ledger.database.transaction():
            if self._ledger.entry(self.reservation.id).state != "committed":  # by a concurrent attempt
                self._ledger.settle(self.reservation.id, "committed")

    def has_spent(self) -> bool:
        """Return True if an entry counts under this key."""
        return self._ledger.find(self._key) is not None

    def check_affordable(self, loss: Loss) -> None:
        """Raise BudgetExceededError if the loss exceeds the budget or a limit. A run that is charged can continue."""
        if not self.has_spent():
            self._ledger.check_affordable(loss, self._limits)

    def entry(self, number: int) -> ledgers.Entry:
        """Return an entry of the data set's ledger."""
        return self._ledger.entry(number)

    def entries(self) -> list[ledgers.Entry]:
        """Return the entries of the data set's ledger."""
        return self._ledger.entries()

    def balance(self) -> ledgers.Balance:
        """Return the totals of the data set's ledger."""
        return self._ledger.balance()

    def as_issued(self, certificate: PrivacyCertificate) -> str:
        """Return a certificate as JSON, with the hash of the ledger event that charged it.

        That event is written before any row is read, so its hash depends on no row. A ledger without this event has
        forgotten the release.
        """
        digest = self._ledger.hash_of(certificate.ledger_entry)
        return json.dumps({**certificate.to_dict(), "ledger_hash": digest})


def grant_of(plan: DatabaseRow) -> ledgers.Limit:
    """Return the limit that the signature of a plan sets: on the number of runs, or on the loss of all batches."""
    part, name = ledgers.Part(grant=plan["id"]), f"the signature of plan {plan['id']}"
    if plan["kind"] == "answer":
        return ledgers.Limit(name, part, _budget_of(plan["total_epsilon"], plan["total_delta"]))
    return ledgers.Limit(name, part, max_releases=plan["runs"])


def limit_of(allowance: DatabaseRow) -> ledgers.Limit:
    """Return the limit that an allowance sets in the current period."""
    part = ledgers.Part(allowance["account"], period=_current_period(allowance["period"]))
    whose = allowance["account"] or "everybody"
    return ledgers.Limit(f"the allowance of {whose}", part, _budget_of(allowance["epsilon"], allowance["delta"]))


def _current_period(period: str) -> str:
    """Return the prefix of all timestamps in the current year or month; empty without a period."""
    now = datetime.now(UTC)
    return {"year": f"{now:%Y}", "month": f"{now:%Y-%m}", "": ""}[period]


def _budget_of(epsilon: object, delta: object) -> Loss:
    budget = ledgers.requested_budget(epsilon, delta)
    assert budget is not None
    return budget


def end_unfinished_runs(database: Store, ledger: DatasetLedger, dataset: str) -> None:
    """End every job and batch of a data set that has no outcome: none may continue under its charge.

    Their reservations are settled as spent.
    """
    with database.transaction():
        message = "ended when the ledger was frozen or the data set retired"
        outcome = {"state": "failed", "message": message, "detail": None, "lease": None, "ended": current_timestamp()}
        database.update(store.jobs, {"dataset": dataset, "state": ("queued", "running")}, **outcome)
        for model in database.find_all(store.models, kind="answering", dataset=dataset):
            database.remove(store.answers, model=model["id"], labels=None)
        for entry in ledger.entries():
            if entry.state == "reserved":
                ledger.resolve(entry.id, message)


def loss_from_certificate(epsilon: object, delta: object) -> Loss:
    """Return an upper bound on the loss of releases for which only the total epsilon and delta are known.

    With delta > 0, rho is that of pure epsilon, which is larger than the rho that delta would allow. It also holds
    for several releases that add up to epsilon, because the squares of their epsilons add up to less.
    """
    loss = requested_loss(epsilon, delta)
    return Loss.pure_or_zcdp(loss.epsilon, loss.delta) if loss.delta > 0 and loss.epsilon is not None else loss


def _parse_certificate(facts: dict[str, Any], ledger: ledgers.Ledger) -> tuple[PrivacyCertificate, int, str]:
    """Return a certificate with the number and the hash of the event that charged it."""
    try:
        content = read_json(json.dumps(facts))
        digest = content.pop("ledger_hash")
        certificate = PrivacyCertificate.from_dict(content)
        number = certificate.ledger_entry
        is_known = isinstance(number, int) and isinstance(digest, str) and 0 < number < 2**53
    except (KeyError, TypeError, ValueError):
        is_known = False
    if not is_known or not re.fullmatch("[0-9a-f]{64}", digest):
        raise LedgerError("a certificate names no event of a ledger. Hint: upload it as the service issued it.")
    if certificate.epsilon is None or certificate.ledger != ledger.name:
        raise LedgerError(
            f"a certificate has no guarantee or belongs to another ledger than {ledger.name}. Hint: remove it."
        )
    return certificate, number, digest


def _describe_neighbours(certificate: PrivacyCertificate) -> str:
    return f"{certificate.unit}, {'added or removed' if certificate.adjacency == 'add-remove' else 'replaced'}"


def get_dataset(database: Store, name: str) -> DatabaseRow:
    """Return a data set; raise NotFoundError if it does not exist."""
    dataset = database.find(store.datasets, name=name)
    if dataset is None:
        raise NotFoundError("data set", name)
    return dataset
