"""Who a client is, as far as its certificate says it."""

import ssl
from hashlib import sha256
from typing import Any


def principal_of(tls: ssl.SSLObject) -> str | None:
    """Return the principal of a connection whose handshake is done; None without a verified certificate of the client.

    It is the first URI among the names of the certificate's subject, else its common name, else the whole subject. A
    certificate without any, or with names that cannot be read, is itself the principal, by its SHA-256.
    """
    try:
        certificate: Any = tls.getpeercert()
    except ValueError:  # a name is no UTF-8; certificates that are not verified have none
        return _digest(tls)
    if not certificate:
        return None
    uris = (name for kind, name in certificate.get("subjectAltName", ()) if kind == "URI")
    subject = [pair for names in certificate["subject"] for pair in names]
    common_names = (value for kind, value in subject if kind == "commonName")
    whole = ", ".join(f"{kind}={value}" for kind, value in subject)
    return next(uris, None) or next(common_names, None) or whole or _digest(tls)


def _digest(tls: ssl.SSLObject) -> str:
    data = tls.getpeercert(binary_form=True)
    assert data is not None
    return f"sha256:{sha256(data).hexdigest()}"
