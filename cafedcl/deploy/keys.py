"""Certificates of a deployment: its own authority, the server's, and a key pair per site."""

import ipaddress
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import read_content
from cafedcl.core.imports import optional

YEARS = 5


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; an old one is replaced atomically."""
    if path.is_dir():
        raise CafedclError(f"{path}: it is a folder; remove it")
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)


def make_certificates(host: str, server: Path) -> bytes:
    """Write the server's key and certificate, and return the certificate of its authority.

    The server's certificate is valid for ``host``, a name or an address, and for the loopback. The
    authority's key is not stored: it signs this one certificate, and nobody can sign another.
    """
    optional("cryptography", "flower", "deploy")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def common_name(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey, ca: bool) -> x509.CertificateBuilder:
        # Five minutes ago, so that sites whose clocks are a little late accept it.
        now = datetime.now(UTC) - timedelta(minutes=5)
        allowed = ("key_cert_sign", "crl_sign") if ca else ("digital_signature",)
        usage = {name: name in allowed for name in KEY_USES}
        return (
            x509.CertificateBuilder()
            .subject_name(common_name(subject))
            .issuer_name(common_name(AUTHORITY))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=365 * YEARS))
            .add_extension(
                x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True
            )
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()),
                critical=False,
            )
        )

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    root = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    ca = builder(AUTHORITY, root, True).sign(root, hashes.SHA384())
    hosts = dict.fromkeys((host, "localhost", "127.0.0.1"))
    names = x509.SubjectAlternativeName([_alternative_name(name) for name in hosts])
    use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    leaf = (
        builder(host[:LONGEST_COMMON_NAME], server_key, False)
        .add_extension(names, False)
        .add_extension(use, False)
        .sign(root, hashes.SHA384())
    )
    write_secret(server / "server.key", private(server_key))
    (server / "server.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    return ca.public_bytes(serialization.Encoding.PEM)


def make_node_key(private: Path, public: Path) -> None:
    """Write a site's key pair in OpenSSH's format, which Flower expects."""
    optional("cryptography", "flower", "deploy")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_secret(
        private, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public.write_bytes(line + b"\n")


def refuse_expired(folder: Path) -> None:
    """Raise an error if a certificate in a deployment's folder has expired or is not valid yet."""
    optional("cryptography", "flower", "deploy")
    from cryptography import x509

    for name in ("ca.crt", "server.crt"):
        path = folder / name
        if not path.exists():
            continue
        try:
            certificate = x509.load_pem_x509_certificate(read_content(path))
        except ValueError:
            raise CafedclError(
                f"{path}: this is not a certificate; copy it from the server again, or make a new "
                "one there with `cafedcl deploy renew`"
            ) from None
        first = certificate.not_valid_before_utc
        last = certificate.not_valid_after_utc
        if not first <= datetime.now(UTC) <= last:
            raise CafedclError(
                f"{path}: this certificate is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}; "
                "renew it at the server with `cafedcl deploy renew`, copy the new ca.crt to every "
                "site, or set this machine's clock"
            )


def refuse_missing(folder: Path, advice: Mapping[str, str]) -> None:
    """Raise an error if a key or certificate is not in a deployment's folder.

    ``advice`` says what to do if each file is missing.
    """
    for name, what_to_do in advice.items():
        if (folder / name).is_dir():
            raise CafedclError(f"{folder / name}: it is a folder, where a file is expected")
        if not (folder / name).is_file():
            raise CafedclError(f"{folder}: there is no {name}; {what_to_do}")


def refuse_broken_key(path: Path) -> None:
    """Raise an error if a file is not the private key of a site."""
    optional("cryptography", "flower", "deploy")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        serialization.load_ssh_private_key(read_content(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CafedclError(
            f"{path}: this is not the key of a site; make a new one with `cafedcl deploy renew`"
        ) from None


def days_left(folder: Path) -> int:
    """Return for how many days the certificate of a server's folder is valid."""
    optional("cryptography", "flower", "deploy")
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def read_node_key(path: Path) -> bytes:
    """Return a site's public key; raise an error if a file has none that Flower accepts."""
    optional("cryptography", "flower", "deploy")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = read_content(path)
    try:
        key = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise CafedclError(f"{path}: this is not the public key of a site")
    return data


AUTHORITY = "cafedcl deployment"
LONGEST_COMMON_NAME = 64
"""The limit in characters; clients compare the alternative names, which may be longer."""
KEY_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _alternative_name(name: str) -> "x509.GeneralName":  # type: ignore[name-defined]  # noqa: F821
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
