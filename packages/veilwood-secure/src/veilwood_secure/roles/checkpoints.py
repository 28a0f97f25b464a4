# SPDX-License-Identifier: Apache-2.0
"""Encrypted state of a server on disk: rows in shares, training runs, opened values, counters and stored models.

The state survives a crash of the server. All files are encrypted under the operator's secret. Recovery is implemented
in ``training``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as write_arrays

from veilwood.arrays import AnyArray, Ints
from veilwood.errors import ModelFileError, PartyError
from veilwood.safe_io import read_json, write_file
from veilwood_secure.mpc.engine import RingArray, Shared
from veilwood_secure.roles.sessions import agree_on_facts, draw_name, exchange_values
from veilwood_secure.roles.transport import TlsLinks

_CHECKPOINT_MAGIC: Final = b"VWCHECK1"
_SALT, _NONCE = 16, 12


class EncryptedFolder:
    """Folder of small encrypted files. The key is derived once.

    Parameters
    ----------
    folder : Path
        Folder of the files; created if missing.
    secret : bytes
        Secret from which the key is derived (scrypt, with a salt per folder).
    owner : str
        Party to which the files belong; files of another server cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> folder = EncryptedFolder(Path(tempfile.mkdtemp()), b"secret", "server 0")
    >>> folder.write_file("flowers/state", b"17")
    >>> folder.read_file("flowers/state"), folder.read_file("flowers/other")
    (b'17', None)
    """

    def __init__(self, folder: Path, secret: bytes, owner: str) -> None:
        self._folder, self._owner = folder, owner
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        salt = folder / "salt"
        if not salt.exists():
            write_file(salt, secrets.token_bytes(_SALT))
        self._cipher = AESGCM(Scrypt(salt=salt.read_bytes(), length=32, n=1 << 14, r=8, p=1).derive(secret))
        for left_over in folder.rglob(".*.part"):  # of an interrupted write
            left_over.unlink()

    def write_file(self, name: str, plaintext: bytes) -> None:
        """Write a file atomically: after a crash, either the old or the new version is there."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nonce = secrets.token_bytes(_NONCE)
        write_file(
            path, _CHECKPOINT_MAGIC + nonce + self._cipher.encrypt(nonce, plaintext, self._associated_data(name))
        )
        path.chmod(0o600)
        if os.name == "posix":  # the directory entry must survive a power failure too
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it is missing.

        Raise ModelFileError if the file was altered, moved or belongs to another server.
        """
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        start = len(_CHECKPOINT_MAGIC) + _NONCE
        try:
            if not data.startswith(_CHECKPOINT_MAGIC):
                raise InvalidTag
            return self._cipher.decrypt(data[len(_CHECKPOINT_MAGIC) : start], data[start:], self._associated_data(name))
        except InvalidTag:
            raise ModelFileError(
                f"checkpoint {name!r} does not open: altered, of another server, or another secret. Hint: restore the "
                "newest version, or delete it and contribute again."
            ) from None

    def remove_files(self, name: str) -> None:
        """Delete a file or a folder of files."""
        path = self._folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _associated_data(self, name: str) -> bytes:
        return f"{self._owner}/{name}".encode()


class Checkpoint:
    """State of one task at one server, on disk.

    Parameters
    ----------
    folder : EncryptedFolder
        Storage of the state.
    task : str
        Name of the task.
    subject : str
        Use of rows to which the owners consent. State on disk for another subject is deleted.

    Notes
    -----
    Guarantee

    Rows and openings are used for their subject only, not for another task of the same name. A counter increases with
    every change and is sent to the other servers, which store the highest value received: a server that returns with
    older files is rejected. All three servers store their shares of a value before it is opened
    (proofs/secure-crash.md, attacked by packages/veilwood-secure/tests/roles/test_server_crashes.py and
    packages/veilwood-secure/tests/roles/test_uploads.py).
    """

    def __init__(self, folder: EncryptedFolder, task: str, subject: str = "") -> None:
        self._folder, self._task, self.subject = folder, task, subject
        data = folder.read_file(f"{task}/state")
        facts: dict[str, Any] = {} if data is None else read_json(data)
        self.counter: int = facts.get("counter", 0)
        self.heard: list[int] = facts.get("heard", [0, 0, 0])
        self._heard_before = list(self.heard)  # counters received by the previous process of this server
        self.parts: dict[str, dict[str, dict[str, Any]]] = facts.get("parts", {})
        self.attempt: dict[str, Any] | None = facts.get("attempt")
        self.intents: int = facts.get("intents", 0)
        self.approvals: dict[str, dict[str, Any]] = facts.get("approvals", {})
        self.ledger_entries: int = facts.get("ledger_entries", 0)
        self.opened: list[Ints] = []
        while (value := folder.read_file(f"{task}/opening-{len(self.opened)}")) is not None:
            self.opened.append(np.load(io.BytesIO(value), allow_pickle=False))
        self.ticket: str = facts.get("ticket", "")
        if not self.ticket:
            self.renew_ticket()
            self._write_state()
        if data is not None and facts.get("subject") != subject:  # the ledger keeps the charge of a started run
            self.end_training()
            self.forget_rows()
            self.renew_ticket()
            self.save()

    @property
    def is_empty(self) -> bool:
        """Whether there is no state to resume from."""
        return not self.parts and self.attempt is None and not self.may_have_opened

    def renew_ticket(self) -> None:
        """Draw this server's ticket for the next charge. Owners sign a charge under the tickets of all servers."""
        self.ticket = secrets.token_hex(8)

    def disagreeing_owners(self, party: int) -> list[str]:
        """Return the owners that have not consented to the next charge, but to a different charge."""
        return [owner for owner, approval in self.approvals.items() if approval["tickets"][party] != self.ticket]

    def save(self) -> None:
        """Write the state under the next counter."""
        self.counter += 1
        self._write_state()

    def _write_state(self) -> None:
        keys = ("subject", "counter", "heard", "parts", "attempt", "intents", "approvals", "ledger_entries", "ticket")
        self._folder.write_file(f"{self._task}/state", json.dumps({key: getattr(self, key) for key in keys}).encode())

    def check_counters(self, counters: Sequence[Any], *, concurrent: bool = False) -> None:
        """Record the counters of all three servers. Raise PartyError if one is lower than before.

        With ``concurrent`` uploads, counters may arrive out of order, so they are compared only with counters that the
        previous process received. Training runs happen one at a time and are compared with all counters received.
        """
        known = self._heard_before if concurrent else self.heard
        for party, count in enumerate(counters):
            if not isinstance(count, int) or count < known[party]:
                raise PartyError(
                    f"server {party} restarted with older files of task {self._task!r} than it had. Hint: restore its "
                    "newest files, or retire the task.",
                    party=f"server {party}",
                )
        highest = [max(pair) for pair in zip(self.heard, counters, strict=True)]
        if self.heard != highest:
            self.heard = highest
            self._write_state()

    @property
    def state_summary(self) -> tuple[int, bool, list[int]]:
        """Summary of the state, sent to the other servers before an owner is admitted."""
        return self.counter, self.is_empty, self.heard

    def agree_on_state(self, summaries: Sequence[tuple[int, bool, list[int]]], party: int) -> None:
        """Compare the summaries of all three servers, as ``check_counters`` does.

        If no server has state to resume from, no state can be outdated. Each then continues from the highest counter
        that any server received from it, so its earlier files stay older.
        """
        counters, empty, heard = zip(*summaries, strict=True)
        if not all(empty) or not self.is_empty:
            self.check_counters(counters, concurrent=True)
            return
        self.heard = [max(numbers) for numbers in zip(self.heard, counters, *heard, strict=True)]
        self.counter = max(self.counter, self.heard[party])
        self._write_state()

    # Rows

    def read_piece(self, owner: str, part: str, number: int) -> bytes | None:
        """Return the shares of a piece of an owner's rows as they were received, or None if they are not stored."""
        return self._folder.read_file(self._piece_path(owner, part, number))

    def write_piece(self, owner: str, part: str, number: int, data: bytes) -> None:
        """Store a piece of an owner's rows."""
        self._folder.write_file(self._piece_path(owner, part, number), data)

    def drop_part(self, owner: str, part: str) -> None:
        """Delete a part of an owner's rows."""
        self.parts.get(owner, {}).pop(part, None)
        self._folder.remove_files(f"{self._task}/rows/{owner}/{part}")

    def forget_owner_rows(self, owner: str) -> None:
        """Delete all rows of an owner; the owner must send its rows again."""
        self.parts.pop(owner, None)
        self._folder.remove_files(f"{self._task}/rows/{owner}")

    def forget_rows(self) -> None:
        """Delete all rows and the consent of their owners."""
        self.parts, self.approvals = {}, {}
        self._folder.remove_files(f"{self._task}/rows")

    def _piece_path(self, owner: str, part: str, number: int) -> str:
        return f"{self._task}/rows/{owner}/{part}/{number}"

    # Training runs

    def begin_training(self, training: str, entry: int = 0) -> None:
        """Record a training run before it is charged; 0 stands for its future entry in the ledger."""
        self.forget_openings()
        self.attempt = {"training": training, "entry": entry}
        self.save()

    def record_charge(self, entry: int) -> None:
        """Record the ledger entry of the present attempt."""
        assert self.attempt is not None
        self.attempt["entry"] = entry
        self.ledger_entries = max(self.ledger_entries, entry)
        self.save()

    def end_training(self) -> None:
        """Delete the record of the started training run."""
        self.forget_openings()
        self.attempt = None

    def forget_openings(self) -> None:
        """Delete all opened values and prepared openings."""
        for number in range(max(len(self.opened), self.intents) + 2):
            self._folder.remove_files(f"{self._task}/opening-{number}")
            self._folder.remove_files(self._pending_path(number))
        self.opened, self.intents = [], 0

    def prepare_opening(self, number: int, name: str, parts: Sequence[RingArray]) -> None:
        """Store the shares of a value before any of them is sent, so that the same shares can be opened again."""
        data = write_arrays({"name": np.frombuffer(name.encode(), np.uint8), "first": parts[0], "second": parts[1]})
        self._folder.write_file(self._pending_path(number), data)

    def read_pending(self, number: int) -> PendingOpening | None:
        """Return a prepared opening, or None if there is none."""
        data = self._folder.read_file(self._pending_path(number))
        if data is None:
            return None
        arrays = parse_arrays(data)
        return PendingOpening(arrays["name"].tobytes().decode(), (arrays["first"], arrays["second"]))

    @property
    def may_have_opened(self) -> bool:
        """Whether a value of the attempt may have been opened, which requires a prepared opening at every server."""
        return self.intents > 0 or self.read_pending(0) is not None

    def record_intent(self, number: int) -> None:
        """Record that this server is about to send its shares of an opening: all three servers have prepared it."""
        self.intents = number + 1
        self.save()
        self._folder.remove_files(self._pending_path(number - 1))  # all three servers have its result

    def record_opening(self, values: Ints) -> None:
        """Store opened values."""
        data = io.BytesIO()
        np.save(data, values, allow_pickle=False)
        self._folder.write_file(f"{self._task}/opening-{len(self.opened)}", data.getvalue())
        self.opened.append(values)

    def _pending_path(self, number: int) -> str:
        return f"{self._task}/pending-{number}"


class PendingOpening(NamedTuple):
    """Shares of a value that is being opened, with the name of the session in which they were computed."""

    name: str
    parts: tuple[RingArray, RingArray]


class RecordedOpenings:
    """Record of the openings of a training run at one server: no value is opened twice with different noise.

    Parameters
    ----------
    links : TlsLinks
        Links of the session.
    state : Checkpoint
        Checkpoint in which openings are stored.
    reopened : int or None
        Number of the opening that a party may have seen in an interrupted session: its stored shares are opened.

    Notes
    -----
    Guarantee

    Before any server sends a share of an opening, all three servers have stored their shares of it. Values that an
    interrupted training run opened are returned unchanged; a value that may have been seen is opened again from the
    stored shares. Noise that the new run draws for these values is discarded in shares (proofs/secure-crash.md,
    attacked by packages/veilwood-secure/tests/roles/test_server_crashes.py).
    """

    def __init__(self, links: TlsLinks, state: Checkpoint, reopened: int | None) -> None:
        self._links, self._state, self._reopened, self._number = links, state, reopened, 0
        self._name = draw_name(links)

    def open(self, x: Shared, reveal: Callable[[Shared], Ints]) -> Ints:
        """Open the integers, or return the recorded result of this opening."""
        number, state, name = self._number, self._state, self._name
        self._number += 1
        if number < len(state.opened):
            if state.opened[number].shape != x.shape:
                raise _changed_shape_error(number)
            return state.opened[number]
        pending = state.read_pending(number) if number == self._reopened else None
        if pending is None:
            state.prepare_opening(number, name, x.parts)
        else:
            if pending.parts[0].shape != x.shape or pending.parts[0].dtype != x.dtype:
                raise _changed_shape_error(number)
            name, x = pending.name, Shared(pending.parts, x.public_at)
        reports = exchange_values(self._links, [state.counter, number, name])
        state.check_counters([report[0] for report in reports])
        if any(report[1:] != [number, name] for report in reports):
            raise PartyError("the servers are not opening the same value. Hint: read the logs of all three servers.")
        state.record_intent(number)
        values = reveal(x)
        state.record_opening(values)
        return values


def _changed_shape_error(number: int) -> PartyError:
    return PartyError(
        f"opening {number} has a different shape than before. Hint: check that all parties run the same version."
    )


def sync_openings(links: TlsLinks, state: Checkpoint, counts: Sequence[int], intents: Sequence[int]) -> int | None:
    """Bring all servers to the openings that at least two of them have, from two equal copies.

    Return the number of the next opening if it may have been seen, so that it must be opened from its stored shares;
    otherwise None.
    """
    common = sorted(counts)[1]
    lacking = [party for party in range(3) if counts[party] < common]
    agree_on_facts(links, {"openings": common, "lacking": lacking})
    for party in lacking:
        if party != links.party:
            missing = range(counts[party], common)
            links.send(party, write_arrays({str(number): state.opened[number] for number in missing}))
            continue
        copies = [bytes(links.receive(other)) for other in sorted(links.channels)]
        if copies[0] != copies[1]:
            raise PartyError("two servers report different openings. Hint: read the logs of all three servers.")
        found = parse_arrays(copies[0])
        for number in range(len(state.opened), common):
            state.record_opening(found[str(number)].astype(np.int64))
    state.opened = state.opened[:common]  # an opening that only one server has is opened again
    state.intents = max(state.intents, common)
    agree_on_facts(links, {"opened": _hash_openings(state.opened)})
    pending = state.read_pending(common)
    names = exchange_values(links, None if pending is None else pending.name)
    if all(count <= common for count in intents):
        return None  # no server has sent a share of it
    if names[0] is None or names.count(names[0]) != 3:
        raise PartyError(
            "a value was being opened, but not all servers have their shares of it. Hint: restore the newest files, or "
            "retire the task."
        )
    return common


def _hash_openings(opened: Sequence[Ints]) -> str:
    digest = hashlib.sha256()
    for values in opened:
        digest.update(f"{values.shape}".encode() + np.ascontiguousarray(values, "<i8").tobytes())
    return digest.hexdigest()


_MODEL_MAGIC: Final = b"VWSHARE1"


@dataclass(frozen=True)
class StoredModel:
    """One server's data of a model: public facts, released arrays and shares, which alone are uniformly random."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, AnyArray]


class ModelStore:
    """Folder of encrypted models.

    Parameters
    ----------
    folder, secret, owner
        As for ``EncryptedFolder``, except that each file has a salt of its own.

    Examples
    --------
    >>> import tempfile
    >>> store = ModelStore(Path(tempfile.mkdtemp()), b"secret", "server 0")
    >>> store.save("flowers", StoredModel({"rounds": 3}, {"leaves": np.arange(4)}))
    >>> store.list_names(), store.load("flowers").facts
    (['flowers'], {'rounds': 3})
    """

    def __init__(self, folder: Path, secret: bytes, owner: str) -> None:
        self._folder, self._secret, self._owner = folder, secret, owner
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".*.part"):  # left by an interrupted write: encrypted and unusable
            left_over.unlink()

    def list_names(self) -> list[str]:
        """Return the names of stored models."""
        return sorted(path.stem for path in self._folder.glob("[!.]*.share"))

    def save(self, name: str, model: StoredModel) -> None:
        """Write an encrypted model atomically: a crash leaves the old or the new file."""
        facts = np.frombuffer(json.dumps(dict(model.facts)).encode(), np.uint8)
        plain = write_arrays(
            {"facts": facts} | {f"array.{key}": np.ascontiguousarray(a) for key, a in model.arrays.items()}
        )
        salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
        sealed = self._derive_cipher(salt).encrypt(nonce, plain, self._associated_data(name))
        write_file(self._model_path(name), _MODEL_MAGIC + salt + nonce + sealed)
        self._sync_folder()

    def load(self, name: str) -> StoredModel:
        """Load a model. Raise ModelFileError if the file was altered, swapped or written under another secret."""
        data = self._model_path(name).read_bytes()
        start = len(_MODEL_MAGIC) + _SALT
        salt, nonce, sealed = data[len(_MODEL_MAGIC) : start], data[start : start + _NONCE], data[start + _NONCE :]
        try:
            if not data.startswith(_MODEL_MAGIC):
                raise InvalidTag
            arrays = parse_arrays(self._derive_cipher(salt).decrypt(nonce, sealed, self._associated_data(name)))
        except InvalidTag:
            raise ModelFileError(
                f"the stored part of model {name!r} does not open: altered, of another server, or another secret. "
                "Hint: restore the file, or delete it and train again."
            ) from None
        facts = read_json(arrays.pop("facts").tobytes())
        return StoredModel(facts, {key.removeprefix("array."): array for key, array in arrays.items()})

    def delete_model(self, name: str) -> None:
        """Delete a model."""
        self._model_path(name).unlink(missing_ok=True)
        self._sync_folder()

    def _model_path(self, name: str) -> Path:
        return self._folder / f"{name}.share"

    def _associated_data(self, name: str) -> bytes:
        return f"{self._owner}/{name}".encode()

    def _derive_cipher(self, salt: bytes) -> AESGCM:
        return AESGCM(Scrypt(salt=salt, length=32, n=1 << 14, r=8, p=1).derive(self._secret))

    def _sync_folder(self) -> None:
        """Flush directory entries, so that they survive a power failure."""
        if os.name == "posix":
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
