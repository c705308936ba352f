"""What a registry's client is told, and what its errors mean: a sentence that names what is missing, and no secret.

A client lives for one question or a few. So it reads each file anew, and a password or a key that changes is in use
from the next question on.
"""

import http
from collections.abc import Callable, Mapping

from confluent_kafka.schema_registry.error import SchemaRegistryError

from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.registry_settings import RegistrySettings, tls_context
from tablegate.gateway.contract.registry_tokens import PLACE, certificate_refusal, new_token
from tablegate.jobs.errors import JobError

REGISTRY_TIMEOUT_S = 10


def client_settings(registry: RegistrySettings) -> dict[str, object]:
    """Return what `SchemaRegistryClient` is told; raise `JobError` where it would not take a file."""
    wanted: dict[str, object] = {"url": registry.url, "timeout": REGISTRY_TIMEOUT_S, "max.retries": 1}
    if registry.ca_file is not None:
        wanted["ssl.ca.location"] = str(registry.ca_file)
    if registry.certificate_file is not None and registry.key_file is not None:
        wanted |= {
            "ssl.certificate.location": str(registry.certificate_file),
            "ssl.key.location": str(registry.key_file),
        }
    if registry.username is not None and registry.password is not None:
        wanted["basic.auth.user.info"] = f"{registry.username}:{registry.password.current()}"
    elif registry.token is not None or registry.oauth_client_id is not None:
        wanted |= {
            "bearer.auth.credentials.source": "CUSTOM",
            "bearer.auth.custom.provider.function": _bearer(registry),
            "bearer.auth.custom.provider.config": {},
        }
    _check_files(registry)
    return wanted


def refusal(registry: RegistrySettings, what: str, error: Exception) -> str:
    """Return what to do about an error of the client. `what` could not be done."""
    at = f"schema registry at {registry.url}"
    if not isinstance(error, SchemaRegistryError):
        return _tls_refusal(registry, str(error)) or (
            f"no schema registry answers at {registry.url} ({error}); start it, or correct its url"
        )
    if error.http_status_code == http.HTTPStatus.UNAUTHORIZED:
        return f"{at}: {what}: it {_not_let_in(registry)}"
    if error.http_status_code == http.HTTPStatus.FORBIDDEN:
        return f"{at}: {what}: it gives {_user(registry)} no right to do so; add that right there"
    return f"{at}: {what}: {error.error_message}"


def _not_let_in(registry: RegistrySettings) -> str:
    if registry.username is not None:
        return f'does not let in user "{registry.username}"; correct username or its password {PLACE}'
    if registry.token is not None:
        return f"does not take the token of {registry.token.source()}; write a new one there"
    if registry.oauth_client_id is not None:
        return (
            f'does not take the token that {registry.oauth_token_url} gives client "{registry.oauth_client_id}"; '
            f"correct oauth_scope {PLACE}, or give the client the right there"
        )
    return f"asks who comes; give username and password_file, or a token, {PLACE}"


def _user(registry: RegistrySettings) -> str:
    if registry.username is not None:
        return f'user "{registry.username}"'
    if registry.token is not None:
        return f"the owner of the token of {registry.token.source()}"
    if registry.oauth_client_id is not None:
        return f'client "{registry.oauth_client_id}"'
    if registry.certificate_file is not None:
        return f'the owner of certificate_file "{registry.certificate_file}"'
    return "a client without a name"


def _tls_refusal(registry: RegistrySettings, text: str) -> str | None:
    """Return what TLS wants that is not there, by OpenSSL's error; None where it is of another kind."""
    at = f"the schema registry at {registry.url}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return certificate_refusal(f"{at} has a certificate", registry, text)
    if "ALERT" in text:
        if registry.certificate_file is None:
            return f"{at} wants a certificate of the client; give certificate_file and key_file {PLACE}"
        return f'{at} refuses certificate_file "{registry.certificate_file}"; give one that it trusts'
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return f"{at} has no TLS there; give its url with http://, or its other port"
    return None


def _check_files(registry: RegistrySettings) -> None:
    """Raise `JobError` where TLS cannot use a file: the client would not name it."""
    try:
        tls_context(registry)
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None


# Tokens.


def _bearer(registry: RegistrySettings) -> Callable[[Mapping[str, object]], dict[str, str]]:
    """Return what gives the client a token with each of its questions."""
    kept: list[str] = []  # a client's one token: it lives longer than the client

    def fields(_: Mapping[str, object]) -> dict[str, str]:
        if not kept:
            kept.append(registry.token.current() if registry.token is not None else _token(registry))
        found = {"bearer.auth.token": kept[0], "bearer.auth.logical.cluster": registry.confluent_cluster or ""}
        if registry.confluent_identity_pool is not None:
            found["bearer.auth.identity.pool.id"] = registry.confluent_identity_pool
        return found

    return fields


def _token(registry: RegistrySettings) -> str:
    try:
        return new_token(registry)
    except KafkaSettingsError as error:
        raise JobError(str(error)) from None
