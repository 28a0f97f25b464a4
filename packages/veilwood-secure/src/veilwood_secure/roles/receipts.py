# SPDX-License-Identifier: Apache-2.0
"""Signed statements of servers about the opened values of a training run and the answers to a user.

A server signs its messages, so that it cannot deny them later. Two different statements of a server about the same
answer prove misconduct. One signed statement proves only what a server sent, not that it is right.

A statement about an answer contains digests of shares. The user stores the shares with it (`Receipt.messages`), so that
anyone with the authority's certificate can reconstruct the answer from the signed shares of the three servers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from veilwood.arrays import AnyArray, Ints
from veilwood.errors import PartyError, UnreadableError
from veilwood_secure.mpc.shares import SharePair, pair_from_bytes, reconstruct
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.identity import Identity, PartyName, certificate_dns_name, is_signed, sign_text

_HEX_WIDTH: Final = 2048


def hash_messages(messages: Sequence[bytes | bytearray | memoryview]) -> str:
    """Return a digest of messages and their lengths."""
    digest = hashlib.sha256()
    for message in messages:
        digest.update(len(message).to_bytes(8, "big"))
        digest.update(message)
    return digest.hexdigest()


def hash_released(released: Mapping[str, AnyArray]) -> str:
    """Return a digest of the arrays that a training run released, in the order in which users receive them."""
    return hash_messages([np.ascontiguousarray(array, "<i8").tobytes() for array in released.values()])


def statement_text(kind: str, facts: Mapping[str, Any]) -> str:
    """Return the text that a server signs."""
    return f"veilwood {kind}: {json.dumps(dict(facts), sort_keys=True)}"


def answer_facts(
    party: int, training: str, session: str, number: int, query: Sequence[bytes], answer: bytes
) -> dict[str, Any]:
    """Return the facts about an answer: its number, and digests of the received and sent shares."""
    return {
        "server": party,
        "training": training,
        "session": session,
        "number": number,
        "query": hash_messages(query),
        "answer": hash_messages([answer]),
    }


def to_hex(certificate: bytes) -> str:
    """Return a certificate in hexadecimal form, padded with spaces, since its length varies by a byte or two."""
    return certificate.hex().ljust(_HEX_WIDTH)


@dataclass(frozen=True)
class Receipt:
    """Signed statement of a server, with the server's certificate.

    Attributes
    ----------
    kind : {"answer", "training"}
        Subject of the statement.
    facts : dict
        For an answer: training run, session, number of the answer in the session, and digests of shares
        (``answer_facts``). For a training run: its name and a digest of the opened values.
    signature : str
        Signature of the server.
    certificate : str
        Certificate of the server, in hexadecimal DER form.
    messages : tuple of str
        Shares of the query, then of the answer, in base64; the digests of an answer refer to them.
    """

    kind: str
    facts: Mapping[str, Any]
    signature: str
    certificate: str
    messages: tuple[str, ...] = ()

    @classmethod
    def sign(cls, identity: Identity, kind: str, facts: Mapping[str, Any]) -> Receipt:
        """Return a receipt: a statement signed with a server's key."""
        certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
        signature = sign_text(identity, statement_text(kind, facts))
        return cls(kind, facts, signature, to_hex(certificate.public_bytes(Encoding.DER)))

    def verify(self, authority: bytes) -> PartyName:
        """Return the name of the signing server. Raise UnreadableError unless the servers' authority certified it.

        Parameters
        ----------
        authority : bytes
            Certificate of the servers' authority, ``servers.pem``.
        """
        try:
            der = bytes.fromhex(self.certificate)
            certificate = x509.load_der_x509_certificate(der)
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except (ValueError, TypeError, InvalidSignature):
            raise UnreadableError(
                "the certificate of a receipt was not signed by this authority. Hint: pass servers.pem of the task."
            ) from None
        name = PartyName("server", str(self.facts.get("server")))
        if certificate_dns_name(certificate) != name.dns_name:
            raise UnreadableError(f"a receipt of {name} carries the certificate of another party.")
        if not is_signed(der, statement_text(self.kind, self.facts), self.signature):
            raise UnreadableError(f"a receipt is not signed by {name}, or was changed.")
        return name

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as a dict of plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Receipt:
        """Rebuild a receipt from ``to_dict``."""
        try:
            messages = tuple(map(str, data.get("messages", ())))
            return cls(
                str(data["kind"]), dict(data["facts"]), str(data["signature"]), str(data["certificate"]), messages
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableError(f"this is not a receipt: {error}.") from None


def convicted_server(one: Receipt, other: Receipt, authority: bytes) -> PartyName | None:
    """Return the server that signed two different answers to the same query, or None."""
    same = all(one.facts.get(key) == other.facts.get(key) for key in ("server", "training", "session", "number"))
    if not same or one.kind != other.kind or dict(one.facts) == dict(other.facts):
        return None
    name = one.verify(authority)
    other.verify(authority)
    return name


@dataclass(frozen=True)
class SignedAnswers:
    """Batch of queries and answers, reconstructed from shares that all three servers signed.

    Attributes
    ----------
    training : str
        Name of the training run that produced the model.
    queries : dict
        The encoded queries.
    answers : array
        The index of the answered class of each query.
    """

    training: str
    queries: Mapping[str, AnyArray]
    answers: Ints


def read_answers(found: Sequence[Receipt], program: HiddenForest, authority: bytes) -> list[SignedAnswers]:
    """Verify the receipts of a user and return the queries and answers, batch by batch.

    Raise UnreadableError if a signature is missing or wrong, or if shares do not fit together.

    Parameters
    ----------
    found : sequence of Receipt
        Receipts as collected by a user: those of servers 0, 1 and 2 for each batch.
    program : HiddenForest
        Program of the task.
    authority : bytes
        Certificate of the servers' authority, ``servers.pem``.
    """
    return [_read_batch(found[start : start + 3], program, authority) for start in range(0, len(found), 3)]


def _read_batch(batch: Sequence[Receipt], program: HiddenForest, authority: bytes) -> SignedAnswers:
    """Reconstruct one batch from the receipts of the three servers."""
    servers = [receipt.verify(authority).name for receipt in batch]
    about = {tuple(str(receipt.facts.get(key)) for key in ("training", "session", "number")) for receipt in batch}
    if servers != ["0", "1", "2"] or len(about) > 1 or {receipt.kind for receipt in batch} != {"answer"}:
        raise UnreadableError("these are not the receipts of servers 0, 1 and 2 for one answer, in order.")
    messages = [[base64.b64decode(text) for text in receipt.messages] for receipt in batch]
    for receipt, own in zip(batch, messages, strict=True):
        signed = (receipt.facts.get("query"), receipt.facts.get("answer"))
        if not own or signed != (hash_messages(own[:-1]), hash_messages(own[-1:])):
            raise UnreadableError(
                f"the shares in a receipt are not those that server {receipt.facts['server']} signed."
            )
    rows = len(messages[0][-1]) // (2 * np.dtype(program.answer_ring).itemsize)
    shapes = program.query_shapes(rows)
    if any(len(own) != len(shapes) + 1 for own in messages):
        raise UnreadableError("a receipt has the shares of another protocol. Hint: pass the folder of the same task.")
    queries = {
        name: reconstruct([pair_from_bytes(own[at], shape, program.ring) for own in messages])
        for at, (name, shape) in enumerate(shapes.items())
    }
    answers: list[SharePair] = [pair_from_bytes(own[-1], (rows,), program.answer_ring) for own in messages]
    return SignedAnswers(next(iter(about))[0], queries, reconstruct(answers))


def check_training(claimed: Sequence[Any], training: str, opened: str, authority: bytes) -> list[Receipt]:
    """Return the servers' statements about a training run. Raise PartyError unless all signed the opened values."""
    found = []
    for party in range(3):
        try:
            receipt = Receipt.from_dict(claimed[party])
            receipt.verify(authority)
        except (UnreadableError, IndexError) as error:
            raise PartyError(f"a statement about training {training} is missing or invalid: {error}") from None
        if (receipt.kind, dict(receipt.facts)) != ("training", training_facts(party, training, opened)):
            raise PartyError(f"server {party} signed another result of training {training}.", party=f"server {party}")
        found.append(receipt)
    return found


def training_facts(party: int, training: str, opened: str) -> dict[str, Any]:
    """Return the facts about a training run that a server signs."""
    return {"server": party, "training": training, "opened": opened}
