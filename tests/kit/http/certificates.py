"""Certificates for tests: of an authority made on the spot, written as PEM files.

They have the extensions of RFC 5280 that Python 3.13 demands by default (`ssl.VERIFY_X509_STRICT`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)
HOSTS = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1 and localhost, good for servers and clients; its own is in `certificate`."""

    def __init__(self, directory: Path, name: str = "authority", *, above: "Authority | None" = None) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        signer = above or self
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer._key.public_key())
        signed = (
            _builder(self._name, signer._name, self._key.public_key(), datetime.now(UTC) + VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(identifier, critical=False)
            .sign(signer._key, SHA256())
        )
        self.certificate = directory / f"{name}.pem"
        self.certificate.write_bytes(signed.public_bytes(Encoding.PEM))

    def below(self, name: str) -> "Authority":
        """Return another authority, whose certificate this one signs."""
        return Authority(self._directory, name, above=self)

    def issue(
        self,
        name: str = "server",
        *,
        expired: bool = False,
        begins_in: timedelta | None = None,
        subject: x509.Name | None = None,
        alternatives: x509.ExtensionType = HOSTS,
    ) -> Pair:
        """Write a new certificate and its key, in place of those of the same name.

        `begins_in`: it is not valid before. `subject`: else `name` is its common name. `alternatives`: the subject's
        other names.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-VALID if expired else VALID)
        if begins_in is not None:
            end += VALID + begins_in
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = (
            _builder(_name(name) if subject is None else subject, self._name, key.public_key(), end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(alternatives, critical=subject == x509.Name([]))  # RFC 5280 4.2.1.6
            .add_extension(usages, critical=False)
            .sign(self._key, SHA256())
        )
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def revoke(self, *pairs: Pair, expired: bool = False, delta: bool = False) -> bytes:
        """Return the list of revoked certificates, as PEM, which has these; `delta`: since list 1."""
        end = datetime.now(UTC) + (-VALID if expired else VALID)
        builder = x509.CertificateRevocationListBuilder(self._name, end - 2 * VALID, end)
        if delta:
            builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
        for pair in pairs:
            number = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder(number, end - 2 * VALID)
            builder = builder.add_revoked_certificate(revoked.build())
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(**uses: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    names += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: uses.get(name, False) for name in names})


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 2 * VALID)
        .not_valid_after(end)
    )
