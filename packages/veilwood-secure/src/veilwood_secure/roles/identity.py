# SPDX-License-Identifier: Apache-2.0
"""Who is who: two authorities, certificates whose name is the role, and the TLS settings that insist on them.

What travels over a connection is in ``transport``; which files hold a role's identity is decided in ``config``.
"""

from __future__ import annotations

import os
import re
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilwood.errors import PartyError, SetupError, UseError

__all__ = [
    "Authority",
    "Identity",
    "PartyName",
    "generate_secret",
    "install_certificate",
    "peer_name",
    "request_certificate",
    "sign_request",
    "tls_context",
]


Role = Literal["server", "owner", "user"]

_DOMAIN = "veilwood"
_PLAIN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_PEER = re.compile(rf"({_PLAIN_NAME.pattern})\.(server|owner|user)\.{_DOMAIN}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class PartyName:
    """A role and a name in it, as written into a certificate: ``north.owner.veilwood``.

    Examples
    --------
    >>> PartyName("owner", "north").dns_name
    'north.owner.veilwood'
    >>> str(PartyName("server", "2"))
    'server 2'
    """

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not _PLAIN_NAME.fullmatch(self.name):
            raise UseError(f"{self.name!r} is not a name for a {self.role}. Hint: use a-z, 0-9 and '-', up to 40.")
        if self.role == "server" and self.name not in ("0", "1", "2"):
            raise UseError(f"there is no server {self.name!r}. Hint: servers are 0, 1 and 2.")

    @property
    def dns_name(self) -> str:
        """The name in the certificate."""
        return f"{self.name}.{self.role}.{_DOMAIN}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


@dataclass(frozen=True)
class Identity:
    """The files by which a role proves who it is; the key is encrypted under the operator's secret."""

    certificate: Path
    key: Path
    secret: bytes


def generate_secret() -> bytes:
    """Draw what an operator keeps apart from the machine's disk: it opens keys and stored models."""
    return secrets.token_hex(32).encode()


class Authority:
    """Signs certificates, either of the three servers or of owners and users, never of both.

    Parameters
    ----------
    roles : tuple of str
        What this authority may sign.
    certificate, key
        Its own; ``create`` draws them, ``load`` reads them.
    """

    def __init__(self, roles: tuple[Role, ...], certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.roles, self._certificate, self._key = roles, certificate, key

    @classmethod
    def create(cls, roles: tuple[Role, ...], days: int = 3650) -> Authority:
        """Draw a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        who = _x509_name(f"{_DOMAIN} authority of {' and '.join(roles)}s {secrets.token_hex(4)}")
        builder = (
            _certificate_builder(who, who, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        )
        return cls(roles, builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, roles: tuple[Role, ...], certificate: Path, key: Path, secret: bytes) -> Authority:
        """Read an authority that ``save`` wrote."""
        opened = read_private_key(key, secret)
        return cls(roles, x509.load_pem_x509_certificate(certificate.read_bytes()), opened)

    def save(self, certificate: Path, key: Path, secret: bytes) -> None:
        """Write the certificate, and the key encrypted."""
        certificate.write_bytes(self.certificate)
        write_private_file(key, encrypt_key(self._key, secret))

    @property
    def certificate(self) -> bytes:
        """The public certificate, as PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, name: PartyName, certificate: Path, key: Path, *, days: int = 365) -> Identity:
        """Draw a key for a name and sign it; return the files and the new secret that opens the key."""
        secret, own = generate_secret(), ec.generate_private_key(ec.SECP256R1())
        signed = self.sign(name, own.public_key(), days=days)
        certificate.write_bytes(signed)
        write_private_file(key, encrypt_key(own, secret))
        return Identity(certificate, key, secret)

    def sign(self, name: PartyName, public_key: ec.EllipticCurvePublicKey, *, days: int = 365) -> bytes:
        """Return a certificate, as PEM, that a key belongs to a name."""
        if name.role not in self.roles:
            raise UseError(f"the authority of {' and '.join(self.roles)}s does not sign for a {name.role}.")
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if name.role == "server":
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _certificate_builder(_x509_name(name.dns_name), self._certificate.subject, public_key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name.dns_name)]), critical=False)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def tls_context(identity: Identity, trusted: Path, *, listens: bool) -> ssl.SSLContext:
    """TLS 1.3 with a certificate demanded from the other side, signed by the one authority in ``trusted``.

    A dialling side also checks the name in the certificate: pass ``PartyName(...).dns_name`` as ``server_hostname``.
    A listening side reads it with ``peer_name``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = not listens
    if listens:
        context.num_tickets = 0  # no resumption: every connection shows its certificate, and idle links stay silent
    try:
        context.load_verify_locations(trusted)
        context.load_cert_chain(identity.certificate, identity.key, password=identity.secret)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"cannot use certificate {identity.certificate} with its key: {error.strerror or error}. "
            "Hint: is this the secret that was made with them?"
        ) from None
    return context


def peer_name(connection: ssl.SSLSocket) -> PartyName:
    """The one name in the certificate of the other side."""
    certificate: Any = connection.getpeercert() or {}
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    found = _PEER.fullmatch(names[0]) if len(names) == 1 else None
    if found is None:
        raise PartyError(f"a certificate with the names {names} belongs to no role.", party="unknown")
    return PartyName(found[3], found[1])  # type: ignore[arg-type]


def sign_text(identity: Identity, text: str) -> str:
    """Sign words with a role's key; return the signature in hexadecimal digits, always as many."""
    signature = read_private_key(identity.key, identity.secret).sign(text.encode(), ec.ECDSA(hashes.SHA256()))
    return "".join(f"{number:064x}" for number in decode_dss_signature(signature))


def is_signed(certificate: bytes, text: str, signature: object) -> bool:
    """Whether words were signed with the key of a certificate, given in DER form."""
    public = x509.load_der_x509_certificate(certificate).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    digits = str(signature)
    if not _SIGNATURE.fullmatch(digits):
        return False
    try:
        numbers = encode_dss_signature(int(digits[:64], 16), int(digits[64:], 16))
        public.verify(numbers, text.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def certificate_dns_name(certificate: x509.Certificate) -> str:
    """The one name in a certificate."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return " ".join(found.get_values_for_type(x509.DNSName))


def read_private_key(path: Path, secret: bytes) -> ec.EllipticCurvePrivateKey:
    """Read an encrypted private key."""
    try:
        key = load_pem_private_key(path.read_bytes(), secret)
    except ValueError:
        raise SetupError(f"{path} does not open with this secret. Hint: each role has its own.") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the first moment on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def encrypt_key(key: ec.EllipticCurvePrivateKey, secret: bytes) -> bytes:
    """Return a private key as it is written: encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(secret))


def _x509_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + timedelta(days=days)) - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


_KEY_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _key_usage(*uses: str) -> x509.KeyUsage:
    """Allow these uses of a key and no other."""
    return x509.KeyUsage(**{use: use in uses for use in _KEY_USAGES})


REQUEST_FILE = "request.pem"
_NEW_KEY_FILE = "key.new.pem"


def request_certificate(folder: Path, name: PartyName, secret: bytes | None = None) -> bytes:
    """Draw a key for a role into its own folder and return the request that an authority signs.

    The key is encrypted under the role's secret, which is drawn if none is given and written to ``secret`` in the
    folder: move it elsewhere. Where a certificate is there already, it stays in use until the new one is installed.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> request_certificate(folder, PartyName("owner", "north"))[:35]
    b'-----BEGIN CERTIFICATE REQUEST-----'
    >>> authority = Authority.create(("owner", "user"))
    >>> signed = sign_request(authority, (folder / "request.pem").read_bytes(), PartyName("owner", "north"))
    >>> install_certificate(folder, signed, PartyName("owner", "north"))
    """
    folder.mkdir(parents=True, exist_ok=True)
    if secret is None:
        secret = generate_secret()
        write_private_file(folder / "secret", secret + b"\n")
    key = ec.generate_private_key(ec.SECP256R1())
    write_private_file(folder / _NEW_KEY_FILE, encrypt_key(key, secret))
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name.dns_name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name.dns_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(names, critical=False)
    request = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / REQUEST_FILE).write_bytes(request)
    return request


def sign_request(authority: Authority, request: bytes, name: PartyName, *, days: int = 365) -> bytes:
    """Sign a request for a name that the authority's keeper has made sure of; return the certificate.

    Nothing but the public key is taken from the request; it must ask for that name, and prove that it has the key.
    """
    try:
        read = x509.load_pem_x509_csr(request)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        asked = names.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        raise UseError("this is not a request for a certificate. Hint: veilwood secure request makes one.") from None
    public = read.public_key()
    if not read.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
        raise UseError("the request is not signed by the key it is for. Hint: ask for it once more.")
    if asked != [name.dns_name]:
        raise UseError(f"the request is not for {name}. Hint: make sure whose it is before it is signed.")
    return authority.sign(name, public, days=days)


def install_certificate(folder: Path, certificate: bytes, name: PartyName, secret: bytes | None = None) -> None:
    """Put a certificate in the place of the old one, with the key it was asked for; a running server takes it up."""
    secret = (folder / "secret").read_bytes().strip() if secret is None else secret
    new = folder / _NEW_KEY_FILE
    if not new.exists():
        raise SetupError(f"{folder} waits for no certificate. Hint: veilwood secure request.")
    try:
        read = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise SetupError("this is not a certificate. Hint: give the file that veilwood secure sign wrote.") from None
    if certificate_dns_name(read) != name.dns_name or read.public_key() != read_private_key(new, secret).public_key():
        raise SetupError(f"the certificate is not the one that {name} asked for here. Hint: compare requests.")
    (folder / "certificate.new.pem").write_bytes(certificate)
    new.replace(folder / "key.pem")
    (folder / "certificate.new.pem").replace(folder / "certificate.pem")
    (folder / REQUEST_FILE).unlink(missing_ok=True)
