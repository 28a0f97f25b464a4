# SPDX-License-Identifier: Apache-2.0
"""Ed25519 signatures of plans and models, stored in a file next to the signed file.

A signature proves who signed, not that the run was honest: the holder of the key can sign a model that was trained
without noise. A key inside a file proves nothing, so the verifier must supply the public key.

The signed payload is canonical JSON behind a fixed line that names its purpose:

| of a model | of a plan |
|---|---|
| hash of the whole file, certificate, plan hash, schema hash, ledger and its entry | plan hash, schema hash |
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veilwood.errors import SignatureError, VeilwoodError, short_repr
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.plan import Plan
from veilwood.safe_io import read_file, read_json, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


PublicKey = str | bytes | PathLike[str]
"""The path of a public key, or the key itself as PEM text."""

_PURPOSE: Final = b"veilwood signature 1\n"
_PUBLIC_KEY_HINT: Final = 'Hint: pass the .pub file that "veilwood sign --new-key" wrote.'
_MAX_KEY_BYTES: Final = 10_000
_MAX_SIGNATURE_BYTES: Final = 1 << 26


# -- payloads ---------------------------------------------------------------------------------------------------------


def model_payload(certificate: PrivacyCertificate, content: bytes) -> dict[str, Any]:
    """Return the payload of a signature of a model file."""
    return {
        "kind": "model",
        "model_hash": hashlib.sha256(content).hexdigest(),
        "plan_hash": certificate.plan_hash,
        "schema_hash": certificate.schema_hash,
        "ledger": certificate.ledger,
        "ledger_entry": certificate.ledger_entry,
        "certificate": certificate.to_dict(),
    }


def plan_payload(plan: Plan) -> dict[str, Any]:
    """Return the payload of a signature of a plan. Its hash covers everything in the plan."""
    return {"kind": "plan", "plan_hash": plan.fingerprint(), "schema_hash": plan.schema_hash}


def _signed_bytes(payload: dict[str, Any]) -> bytes:
    return _PURPOSE + json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# -- keys -------------------------------------------------------------------------------------------------------------


def generate_key_pair(path: str | PathLike[str]) -> Path:
    """Write a new key pair: the private key to ``path``, readable by its owner only, the public key next to it.

    Returns
    -------
    Path
        Path of the public key, which ends in ``.pub``. Pass it to verifiers through a channel that they trust.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private, public = Path(path), Path(f"{os.fspath(path)}.pub")
    for place in (private, public):
        if place.exists():
            raise SignatureError(f"{short_repr(str(place))} exists already. Hint: pass the path of a new key.")
    try:
        # Created with these permissions, so that others cannot read it even for a moment.
        handle = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as error:
        raise SignatureError(f"cannot write {short_repr(str(private))}: {error.strerror or error}.") from None
    write_file(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return public


def _private_key(path: str | PathLike[str]) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read_limited(Path(path), "key")
    if os.name == "posix" and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise SignatureError(
            f"{short_repr(str(path))} can be read by others. Hint: chmod it to 600, or make a new key."
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise SignatureError(
            f"{short_repr(str(path))} is not a private key that can be read ({short_repr(error)})."
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(
            f"{short_repr(str(path))} is not an Ed25519 key. Hint: create one with veilwood sign --new-key KEY."
        )
    return key


def _public_key(key: PublicKey) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not isinstance(key, str | bytes | PathLike):
        raise SignatureError(
            f"signed_by={short_repr(key)} is not a key. Hint: pass the path of a public key, or its PEM text."
        )
    text = key.encode(errors="replace") if isinstance(key, str) else key
    content = text if isinstance(text, bytes) and text.lstrip().startswith(b"-----BEGIN") else None
    if content is None:
        content = _read_limited(Path(os.fsdecode(key)), "key")
    try:
        read = load_pem_public_key(content)
    except (ValueError, TypeError):
        raise SignatureError(f"signed_by is not a public key. {_PUBLIC_KEY_HINT}") from None
    if not isinstance(read, Ed25519PublicKey):
        raise SignatureError(f"signed_by is not an Ed25519 key. {_PUBLIC_KEY_HINT}")
    return read


def public_key_of(path: str | PathLike[str]) -> bytes:
    """Return the public key that belongs to a private key, as PEM text."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _private_key(path).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _key_id(key: Ed25519PublicKey) -> str:
    """Return a short name of a key, for messages only."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


# -- signing and verifying --------------------------------------------------------------------------------------------


def signature_path(path: str | PathLike[str]) -> Path:
    """Return the path of a file's signature: the path of the file with ``.sig`` appended."""
    return Path(f"{os.fspath(path)}.sig")


def write_signature(path: str | PathLike[str], payload: dict[str, Any], key: str | PathLike[str]) -> Path:
    """Sign a payload about the file at ``path`` and write the signature next to it."""
    private = _private_key(key)
    place = signature_path(path)
    write_file(place, _file_content(private.public_key(), private.sign(_signed_bytes(payload)), payload))
    return place


def _file_content(key: Ed25519PublicKey, value: bytes, payload: dict[str, Any]) -> bytes:
    """Return the content of a signature file. The format is unique, so every changed byte is detected."""
    signed = {
        "format": 1,
        "key": _key_id(key),
        "signature": base64.b64encode(value).decode(),
        "statement": payload,
    }
    return (json.dumps(signed, indent=1, sort_keys=True) + "\n").encode()


def verify_signature(path: str | PathLike[str], signed_by: PublicKey, kind: str) -> dict[str, Any]:
    """Return the payload that the holder of a key signed for a file. Raise SignatureError if that cannot be verified.

    No part of the payload is used before the signature is verified. ``require_same_payload`` checks whether the payload
    describes the file.
    """
    from cryptography.exceptions import InvalidSignature

    key = _public_key(signed_by)
    place = signature_path(path)
    name = short_repr(str(place))
    if not place.exists():
        raise SignatureError(f"there is no signature {name}. Hint: ask the signer for it, or omit signed_by.")
    try:
        content = _read_limited(place, "signature")
        signed = read_json(content)
        statement, given = signed["statement"], base64.b64decode(signed["signature"], validate=True)
        if not isinstance(statement, dict) or signed["format"] != 1:
            raise TypeError
        message, who = _signed_bytes(statement), str(signed["key"])
    except SignatureError:
        raise
    except (VeilwoodError, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        raise SignatureError(f"{name} is damaged: it cannot be read as a signature.") from None
    try:
        key.verify(given, message)
    except InvalidSignature:
        if who != _key_id(key):
            keys = f"{short_repr(who)}, not {_key_id(key)}"
            raise SignatureError(
                f"{name} was made by another key ({keys}). Hint: use the signer's public key."
            ) from None
        raise SignatureError(f"{name} is broken: it is not what the holder of the key has signed.") from None
    if content != _file_content(key, given, statement):
        raise SignatureError(f"{name} was changed after signing. Hint: ask the signer for it again.")
    if statement.get("kind") != kind:
        raise SignatureError(f"{name} signs a {short_repr(statement.get('kind'))}, not a {kind}.")
    return statement


def require_same_payload(path: str | PathLike[str], payload: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise SignatureError if a signed payload does not describe this file."""
    different = sorted(name for name in {*payload, *expected} if payload.get(name) != expected.get(name))
    if different:
        raise SignatureError(
            f"{short_repr(str(signature_path(path)))} belongs to another file: "
            f"{', '.join(map(short_repr, different[:4]))} differs."
        )


def _read_limited(path: Path, kind: str) -> bytes:
    max_bytes = _MAX_SIGNATURE_BYTES if kind == "signature" else _MAX_KEY_BYTES
    try:
        content = read_file(path, max_bytes)
    except (OSError, ValueError) as error:  # VeilwoodError is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise SignatureError(f"cannot read the {kind} {short_repr(str(path))}: {reason}.") from None
    if len(content) > max_bytes:
        raise SignatureError(f"{short_repr(str(path))} is too long for a {kind}.")
    return content
