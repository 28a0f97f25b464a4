# SPDX-License-Identifier: Apache-2.0
"""Identities: two certificate authorities, certificates that name a role, enrolment, and TLS settings.

Messages over a connection are in ``transport``; ``config`` names the files of a role's identity.
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

Role = Literal["server", "owner", "user"]

_DOMAIN = "veilwood"
_PLAIN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_PEER = re.compile(rf"({_PLAIN_NAME.pattern})\.(server|owner|user)\.{_DOMAIN}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class PartyName:
    """Role and name of a party, as written into its certificate: ``north.owner.veilwood``.

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
            raise UseError(f"{self.name!r} is not a name for a {self.role}. Hint: use up to 40 of a-z, 0-9 and '-'.")
        if self.role == "server" and self.name not in ("0", "1", "2"):
            raise UseError(f"there is no server {self.name!r}. Hint: choose 0, 1 or 2.")

    @property
    def dns_name(self) -> str:
        """DNS name in the certificate."""
        return f"{self.name}.{self.role}.{_DOMAIN}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


@dataclass(frozen=True)
class Identity:
    """Files that authenticate a role. The key is encrypted under the operator's secret."""

    certificate: Path
    key: Path
    secret: bytes


def generate_secret() -> bytes:
    """Draw a secret that decrypts keys and stored models. Operators must not store it on the machine's disk."""
    return secrets.token_hex(32).encode()


class Authority:
    """Certificate authority, either of the three servers or of owners and users, never of both.

    Parameters
    ----------
    roles : tuple of str
        Roles that this authority may sign.
    certificate, key
        Certificate and key of the authority itself; see ``create`` and ``load``.
    """

    def __init__(self, roles: tuple[Role, ...], certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.roles, self._certificate, self._key = roles, certificate, key

    @classmethod
    def create(cls, roles: tuple[Role, ...], days: int = 3650) -> Authority:
        """Create a new authority."""
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
        """Load an authority written by ``save``."""
        opened = read_private_key(key, secret)
        return cls(roles, x509.load_pem_x509_certificate(certificate.read_bytes()), opened)

    def save(self, certificate: Path, key: Path, secret: bytes) -> None:
        """Write the certificate and the encrypted key."""
        certificate.write_bytes(self.certificate)
        write_private_file(key, encrypt_key(self._key, secret))

    @property
    def certificate(self) -> bytes:
        """Public certificate of the authority, as PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, name: PartyName, certificate: Path, key: Path, *, days: int = 365) -> Identity:
        """Draw a key for a name and sign a certificate. Return the files and the new secret that decrypts the key."""
        secret, own = generate_secret(), ec.generate_private_key(ec.SECP256R1())
        signed = self.sign(name, own.public_key(), days=days)
        certificate.write_bytes(signed)
        write_private_file(key, encrypt_key(own, secret))
        return Identity(certificate, key, secret)

    def sign(self, name: PartyName, public_key: ec.EllipticCurvePublicKey, *, days: int = 365) -> bytes:
        """Return a certificate, as PEM, that binds a public key to a name."""
        if name.role not in self.roles:
            raise UseError(
                f"the authority of {' and '.join(self.roles)}s does not sign for a {name.role}. "
                "Hint: use the other authority."
            )
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
    """Return a TLS 1.3 context that requires a peer certificate signed by the only authority in ``trusted``.

    A dialling side also checks the name in the certificate: pass ``PartyName(...).dns_name`` as ``server_hostname``.
    A listening side reads the name with ``peer_name``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = not listens
    if listens:
        context.num_tickets = 0  # no resumption: every connection presents its certificate, and idle links send nothing
    try:
        context.load_verify_locations(trusted)
        context.load_cert_chain(identity.certificate, identity.key, password=identity.secret)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"cannot use certificate {identity.certificate} with its key: {error.strerror or error}. "
            "Hint: check that the secret belongs to them."
        ) from None
    return context


def peer_name(connection: ssl.SSLSocket) -> PartyName:
    """Return the name in the peer's certificate. Raise PartyError if the certificate names no role."""
    certificate: Any = connection.getpeercert() or {}
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    found = _PEER.fullmatch(names[0]) if len(names) == 1 else None
    if found is None:
        raise PartyError(f"a certificate with the names {names} belongs to no role.", party="unknown")
    return PartyName(found[3], found[1])  # type: ignore[arg-type]


def sign_text(identity: Identity, text: str) -> str:
    """Sign a text with a role's key. Return the signature as a fixed number of hexadecimal digits."""
    signature = read_private_key(identity.key, identity.secret).sign(text.encode(), ec.ECDSA(hashes.SHA256()))
    return "".join(f"{number:064x}" for number in decode_dss_signature(signature))


def is_signed(certificate: bytes, text: str, signature: object) -> bool:
    """Return True if a text was signed with the key of a certificate in DER form."""
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
    """Return the names in a certificate, joined; there should be exactly one."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return " ".join(found.get_values_for_type(x509.DNSName))


def read_private_key(path: Path, secret: bytes) -> ec.EllipticCurvePrivateKey:
    """Read an encrypted private key."""
    try:
        key = load_pem_private_key(path.read_bytes(), secret)
    except ValueError:
        raise SetupError(f"{path} cannot be decrypted with this secret. Hint: use the secret of this role.") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from its creation on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def encrypt_key(key: ec.EllipticCurvePrivateKey, secret: bytes) -> bytes:
    """Return a private key in encrypted form, for a file."""
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
    """Return a key usage extension that allows these uses only."""
    return x509.KeyUsage(**{use: use in uses for use in _KEY_USAGES})


REQUEST_FILE = "request.pem"
_NEW_KEY_FILE = "key.new.pem"


def request_certificate(folder: Path, name: PartyName, secret: bytes | None = None) -> bytes:
    """Draw a key for a role in its own folder and return a certificate request for an authority to sign.

    The key is encrypted under the role's secret. If no secret is given, a new one is drawn and written to ``secret`` in
    the folder; move that file elsewhere. An existing certificate stays in use until the new one is installed.

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
    """Sign a certificate request for a name that the authority's operator has verified; return the certificate.

    Only the public key is taken from the request. The request must name the party and prove possession of the key.
    """
    try:
        read = x509.load_pem_x509_csr(request)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        requested_names = names.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        raise UseError(
            "this is not a request for a certificate. Hint: create one with veilwood secure request."
        ) from None
    public = read.public_key()
    if not read.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
        raise UseError("the request is not signed by the key that it names. Hint: create a new request.")
    if requested_names != [name.dns_name]:
        raise UseError(f"the request is not for {name}. Hint: verify its origin before you sign it.")
    return authority.sign(name, public, days=days)


def install_certificate(folder: Path, certificate: bytes, name: PartyName, secret: bytes | None = None) -> None:
    """Install a certificate and the key for which it was requested. A running server uses both for new connections."""
    secret = (folder / "secret").read_bytes().strip() if secret is None else secret
    new = folder / _NEW_KEY_FILE
    if not new.exists():
        raise SetupError(f"{folder} has no open certificate request. Hint: run veilwood secure request first.")
    try:
        read = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise SetupError("this is not a certificate. Hint: pass the file that veilwood secure sign wrote.") from None
    if certificate_dns_name(read) != name.dns_name or read.public_key() != read_private_key(new, secret).public_key():
        raise SetupError(
            f"the certificate is not the one that {name} requested here. Hint: sign the current request.pem."
        )
    (folder / "certificate.new.pem").write_bytes(certificate)
    new.replace(folder / "key.pem")
    (folder / "certificate.new.pem").replace(folder / "certificate.pem")
    (folder / REQUEST_FILE).unlink(missing_ok=True)
