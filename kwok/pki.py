"""The certificate authority of one cluster: server, client and service-account keys."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = dt.timedelta(days=365)
CLOCK_SLACK = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass
class Authority:
    """A certificate authority that keeps its files in `directory`; made by `Authority.create`."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """Make a new authority and write `ca.crt` into `directory`; its own key never reaches the disk."""
        directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("wholenode-lab", ())
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SLACK)
            .not_valid_after(now + VALIDITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = cls(directory, certificate, key)
        authority.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    @property
    def ca_file(self) -> Path:
        """The authority's certificate (PEM)."""
        return self.directory / "ca.crt"

    def issue(self, file_name: str, name: str, groups: tuple[str, ...] = ()) -> Pair:
        """Sign a certificate for user `name` in `groups`, good for a client and for a server on localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        hosts = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, groups))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SLACK)
            .not_valid_after(now + VALIDITY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([*hosts, address]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        pair = Pair(self.directory / f"{file_name}.crt", self.directory / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def service_account_key(self) -> Path:
        """Write the key that signs service-account tokens and return its path."""
        path = self.directory / "service-accounts.key"
        _write_key(path, ec.generate_private_key(ec.SECP256R1()))
        return path


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
