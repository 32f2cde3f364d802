"""An authority of the test's own, and what it certifies."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import TYPE_CHECKING, Final, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "localhost"
"""What the certificate is for. It is not for 127.0.0.1, where the same servers are reached."""

DAY: Final = dt.timedelta(days=1)


@final
class Authority:
    """Files in a folder: ``ca`` is to be trusted, ``chain`` and ``key`` are a server's, ``both`` has the two in one."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.chain, self.key, self.both = (folder / name for name in ("ca", "chain", "key", "both"))
        own, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("Tests", own, "Tests", own, x509.BasicConstraints(ca=True, path_length=0))
        certified = _certificate("Tests", own, NAME, server, x509.SubjectAlternativeName([x509.DNSName(NAME)]))
        secret = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.ca.write_bytes(authority)
        self.chain.write_bytes(certified)
        self.key.write_bytes(secret)
        self.both.write_bytes(certified + secret)

    def client(self) -> ssl.SSLContext:
        """Return a context that trusts this authority and no other."""
        return ssl.create_default_context(cafile=str(self.ca))

    def server(self) -> ssl.SSLContext:
        """Return a context for a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


def _certificate(
    issuer: str,
    signing: ec.EllipticCurvePrivateKey,
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> bytes:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=_name(issuer),
        subject_name=_name(subject),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - DAY,
        not_valid_after=now + DAY,
    ).add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(signing, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
