"""What Kafka refuses, in a sentence that names what is missing and says what to do.

Decision: docs/decisions/0091-one-configuration-for-kafka.md
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tablegate.gateway.contract.msk import TOKEN_OPTION

NOT_ALLOWED = "AUTHORIZATION_FAILED"
_ABOUT_CONNECTIONS = ("_AUTHENTICATION", "_SSL", "_TRANSPORT")


class Right(NamedTuple):
    """A right as `kafka-acls.sh` has it: an operation, on a topic, group or transactional-id of a name."""

    operation: str
    kind: str
    name: str


def refused_right(client: Mapping[str, Any], error: str, right: Right) -> str | None:
    """Return what to do about an error of this name, which came of want of `right`; None where it is of another kind.

    `client`: librdkafka's settings of the client.
    """
    if not error.endswith(NOT_ALLOWED):
        return None
    operation, kind, name = right
    command = f"kafka-acls.sh --add --allow-principal {_principal(client)} --operation {operation} --{kind} {name}"
    return f'Kafka gives {_user(client)} no right to {operation} on {kind} "{name}"; add it with {command}'


def refused_connection(client: Mapping[str, Any], error: str, text: str) -> str | None:
    """Return why brokers do not let this client in, by librdkafka's error of that name; None where they are away."""
    kafka = f"Kafka at {client['bootstrap.servers']}"
    if error == "_BAD_MSG" and "Invalid response size" in text:  # its advice is to accept messages of a gigabyte
        return f"{kafka} is no broker, or one of TLS: it answers in another protocol; correct bootstrap or protocol"
    if error not in _ABOUT_CONNECTIONS:
        return None
    if error == "_AUTHENTICATION":
        if TOKEN_OPTION in client:
            return (
                f"{kafka} does not let in {_user(client)} ({_reason(text)}); allow it kafka-cluster:Connect, or give "
                "other credentials of AWS"
            )
        if client.get("sasl.mechanism") == "OAUTHBEARER":
            url = client.get("sasl.oauthbearer.token.endpoint.url")
            return (
                f"{kafka} does not let in {_user(client)} by a token of {url} ({_reason(text)}); correct "
                "oauth_client_id, its secret or oauth_scope"
            )
        return f"{kafka} does not let in {_user(client)} ({_reason(text)}); correct username, password or mechanism"
    if "certificate verify failed" in text:
        authority = client.get("ssl.ca.location")
        if authority is None:
            return f"{kafka} has a certificate of a CA that this machine does not know; name the CA's file as ca_file"
        return f'{kafka} has a certificate that ca_file "{authority}" does not prove; give the CA that signed it'
    if "ssl/tls alert" in text:
        certificate = client.get("ssl.certificate.location")
        if certificate is None:
            return f"{kafka} wants a certificate of the client; give certificate_file and key_file"
        return f'{kafka} refuses certificate_file "{certificate}"; give one that a CA of the brokers signed'
    if "PLAINTEXT broker listener" in text:
        return f"{kafka} has no TLS there; correct protocol or bootstrap"
    return f"{kafka} cannot be spoken to by TLS ({_reason(text)}); correct protocol" if error == "_SSL" else None


def _user(client: Mapping[str, Any]) -> str:
    if TOKEN_OPTION in client:
        return "who has the credentials of AWS here"
    if client.get("sasl.mechanism") == "OAUTHBEARER":
        return f'client "{client.get("sasl.oauthbearer.client.id", "")}"'
    if "sasl.username" in client:
        return f'user "{client["sasl.username"]}"'
    if "ssl.certificate.location" in client:
        return f'the owner of certificate_file "{client["ssl.certificate.location"]}"'
    return "a client without a name"


def _principal(client: Mapping[str, Any]) -> str:
    name = client.get("sasl.username") or client.get("sasl.oauthbearer.client.id")
    return f"User:{name}" if name else "USER"


def _reason(text: str) -> str:
    """Return what librdkafka says without the broker before and the time after."""
    text = re.sub(r"^\S+://\S+: ", "", text)
    return re.sub(r" \(after \d+ms in state \w+\)", "", text).removeprefix("SASL authentication error: ")
