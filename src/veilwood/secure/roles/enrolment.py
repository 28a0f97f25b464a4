# SPDX-License-Identifier: Apache-2.0
"""Enrolment without handing keys over: a role draws its key, asks for a signature, and gets a certificate back.

Nobody but the role ever has its private key. Authorities and certificates themselves are in ``identity``.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from veilwood.errors import SetupError, UseError
from veilwood.secure.roles.identity import Authority, Name, name_of, new_secret, open_key, sealed_key, write_private

__all__ = ["install_certificate", "request_certificate", "sign_request"]

REQUEST = "request.pem"
_NEW_KEY = "key.new.pem"


def request_certificate(folder: Path, name: Name, secret: bytes | None = None) -> bytes:
    """Draw a key for a role into its own folder and return the request that an authority signs.

    The key is encrypted under the role's secret, which is drawn if none is given and written to ``secret`` in the
    folder: move it elsewhere. Where a certificate is there already, it stays in use until the new one is installed.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> request_certificate(folder, Name("client", "north"))[:35]
    b'-----BEGIN CERTIFICATE REQUEST-----'
    >>> authority = Authority.create(("client", "user"))
    >>> signed = sign_request(authority, (folder / "request.pem").read_bytes(), Name("client", "north"))
    >>> install_certificate(folder, signed, Name("client", "north"))
    """
    folder.mkdir(parents=True, exist_ok=True)
    if secret is None:
        secret = new_secret()
        write_private(folder / "secret", secret + b"\n")
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / _NEW_KEY, sealed_key(key, secret))
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name.dns)])
    names = x509.SubjectAlternativeName([x509.DNSName(name.dns)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(names, critical=False)
    request = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / REQUEST).write_bytes(request)
    return request


def sign_request(authority: Authority, request: bytes, name: Name, *, days: int = 365) -> bytes:
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
    if asked != [name.dns]:
        raise UseError(f"the request is not for {name}. Hint: make sure whose it is before it is signed.")
    return authority.sign(name, public, days=days)


def install_certificate(folder: Path, certificate: bytes, name: Name, secret: bytes | None = None) -> None:
    """Put a certificate in the place of the old one, with the key it was asked for; a running server takes it up."""
    secret = (folder / "secret").read_bytes().strip() if secret is None else secret
    new = folder / _NEW_KEY
    if not new.exists():
        raise SetupError(f"{folder} waits for no certificate. Hint: veilwood secure request.")
    try:
        read = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise SetupError("this is not a certificate. Hint: give the file that veilwood secure sign wrote.") from None
    if name_of(read) != name.dns or read.public_key() != open_key(new, secret).public_key():
        raise SetupError(f"the certificate is not the one that {name} asked for here. Hint: compare requests.")
    (folder / "certificate.new.pem").write_bytes(certificate)
    new.replace(folder / "key.pem")
    (folder / "certificate.new.pem").replace(folder / "certificate.pem")
    (folder / REQUEST).unlink(missing_ok=True)
