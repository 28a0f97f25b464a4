# SPDX-License-Identifier: Apache-2.0
"""Signed statements of servers: what was opened in a training, and what was answered to a user.

A server signs what it sends, so that it cannot deny it later. Two statements of one server about the same answer that
differ convict it. One signed statement proves what a server said, not that it is right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from veilwood.arrays import AnyArray
from veilwood.errors import PartyError, UnreadableError
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
    """Return a digest of the arrays that a training released, in the order in which users receive them."""
    return hash_messages([np.ascontiguousarray(array, "<i8").tobytes() for array in released.values()])


def statement_text(kind: str, facts: Mapping[str, Any]) -> str:
    """Return the text that a server signs."""
    return f"veilwood {kind}: {json.dumps(dict(facts), sort_keys=True)}"


def answer_facts(
    party: int, training: str, session: str, number: int, query: Sequence[bytes], answer: bytes
) -> dict[str, Any]:
    """Return the facts about an answer: which one, and digests of the shares that were received and sent."""
    return {
        "server": party,
        "training": training,
        "session": session,
        "number": number,
        "query": hash_messages(query),
        "answer": hash_messages([answer]),
    }


def to_hex(certificate: bytes) -> str:
    """Return a certificate in hexadecimal form, padded with spaces: its length is random by a byte or two."""
    return certificate.hex().ljust(_HEX_WIDTH)


@dataclass(frozen=True)
class Receipt:
    """A server's signature under a statement, with its certificate.

    Attributes
    ----------
    kind : {"answer", "training"}
        What the statement is about.
    facts : dict
        Of an answer: training, session, number of the answer in it, and digests of shares (``answer_facts``). Of a
        training: its name and a digest of what it opened.
    signature : str
        Signature of the server.
    certificate : str
        Certificate of the server, in hexadecimal DER form.
    """

    kind: str
    facts: Mapping[str, Any]
    signature: str
    certificate: str

    @classmethod
    def sign(cls, identity: Identity, kind: str, facts: Mapping[str, Any]) -> Receipt:
        """Sign a statement as a server."""
        certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
        signature = sign_text(identity, statement_text(kind, facts))
        return cls(kind, facts, signature, to_hex(certificate.public_bytes(Encoding.DER)))

    def verify(self, authority: bytes) -> PartyName:
        """Return the server that signed. Raise UnreadableError unless the servers' authority certified it.

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
        """Return a dict of plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Receipt:
        """Rebuild a receipt from ``to_dict``."""
        try:
            return cls(str(data["kind"]), dict(data["facts"]), str(data["signature"]), str(data["certificate"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableError(f"this is not a receipt: {error}.") from None


def convicted_server(one: Receipt, other: Receipt, authority: bytes) -> PartyName | None:
    """Return the server that signed two different answers to one question, or None."""
    same = all(one.facts.get(key) == other.facts.get(key) for key in ("server", "training", "session", "number"))
    if not same or one.kind != other.kind or dict(one.facts) == dict(other.facts):
        return None
    name = one.verify(authority)
    other.verify(authority)
    return name


def check_training(claimed: Sequence[Any], training: str, opened: str, authority: bytes) -> list[Receipt]:
    """Return the servers' statements about a training. Raise PartyError unless all three signed what it opened."""
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
    """Return the facts about a training that a server signs."""
    return {"server": party, "training": training, "opened": opened}
