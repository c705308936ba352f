"""How a schema registry is reached: the section `[registry]` of the file of `--kafka`.

Decision: docs/decisions/0091-one-configuration-for-kafka.md
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from tablegate.gateway.contract.kafka_file import Given, KafkaSettingsError, Secret

SECTION = "registry"
OPTION = "--schema-registry"
_USER = "TABLEGATE_KAFKA_REGISTRY_USERNAME and …_PASSWORD"

_SECRETS = ("password", "token", "oauth_client_secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How a registry with the Confluent API is reached. Files are PEM; `None` is what is not needed.

    `url`: several of one registry with commas. One of `username`, `token` and `oauth_client_id` at most says who asks:
    by a password, by a token that somebody else renews, by a token of an OpenID provider. `confluent_…`: what
    Confluent Cloud wants to know with a token.
    """

    url: str
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: Secret | None = None
    oauth_scope: str | None = None
    confluent_cluster: str | None = None
    confluent_identity_pool: str | None = None


def load_registry(
    file: Path | None = None, *, url: str | None = None, environ: Mapping[str, str] = os.environ
) -> RegistrySettings | None:
    """Return the settings of a file, over which the environment goes, and `url`; None where nothing names a registry.

    `url` is that of `--schema-registry`. Raise `KafkaSettingsError`.
    """
    given = Given(file, environ, section=SECTION, is_for_java=False)
    if given.is_empty and url is None:
        return None
    if url is not None:
        hosts = _checked_url(url, OPTION)
    else:
        in_file = given.text("url")
        hosts = _checked_url(in_file, given.where("url")) if in_file else ""
    settings = RegistrySettings(
        url=hosts,
        username=given.text("username"),
        password=given.secret("password"),
        token=given.secret("token"),
        ca_file=given.certificates("ca_file"),
        certificate_file=given.certificates("certificate_file"),
        key_file=given.pem("key_file", _is_key, "unencrypted private key"),
        oauth_token_url=given.text("oauth_token_url"),
        oauth_client_id=given.text("oauth_client_id"),
        oauth_client_secret=given.secret("oauth_client_secret"),
        oauth_scope=given.text("oauth_scope"),
        confluent_cluster=given.text("confluent_cluster"),
        confluent_identity_pool=given.text("confluent_identity_pool"),
    )
    given.check_known({one.name for one in fields(RegistrySettings)}, secrets=_SECRETS)
    _check(settings, given)
    return settings


def _checked_url(url: str, where: str) -> str:
    """Return the URL of a registry, or several with commas, as clients take it; raise `KafkaSettingsError`.

    That does not repeat the URL: who can say what of it is a password?
    """
    hosts: list[str] = []
    for part in url.split(","):
        try:
            parsed = urlsplit(part.strip())
            is_right = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
        except ValueError:
            is_right = False
        if not is_right or "@" in parsed.path + parsed.query + parsed.fragment:
            raise KafkaSettingsError(f"{where} is not a URL; give http://host:port or https://host")
        if parsed.username is not None:
            raise KafkaSettingsError(
                f"{where} has a user, and others may read its password there; give username and password_file in "
                f"[{SECTION}] of --kafka, or {_USER} in the environment"
            )
        hosts.append(f"{parsed.scheme}://{parsed.netloc}{parsed.path.rstrip('/')}")
    return ",".join(hosts)


def tls_context(registry: RegistrySettings) -> ssl.SSLContext:
    """Return what connects to a registry; raise `KafkaSettingsError` where TLS cannot use a file."""
    context = ssl.create_default_context()
    if registry.ca_file is not None:
        try:
            context.load_verify_locations(registry.ca_file)
        except OSError as error:
            raise KafkaSettingsError(
                f'ca_file "{registry.ca_file}" cannot be used ({error.strerror}); correct it'
            ) from None
    if registry.certificate_file is not None:
        try:
            context.load_cert_chain(registry.certificate_file, registry.key_file)
        except OSError as error:
            raise KafkaSettingsError(
                f'certificate_file "{registry.certificate_file}" and key_file "{registry.key_file}" cannot be used '
                f"({error.strerror}); give a certificate and its key"
            ) from None
    return context


def _is_key(text: str) -> bool:
    return "PRIVATE KEY-----" in text and "ENCRYPTED" not in text


def _check(settings: RegistrySettings, given: Given) -> None:
    if not settings.url:
        raise given.refuse(f"names no url; give it, or {OPTION}")
    if not settings.url.startswith("https:") and (settings.ca_file or settings.certificate_file or settings.key_file):
        raise given.refuse("names TLS files, which http:// does not use: give https://")
    if (settings.certificate_file is None) != (settings.key_file is None):
        raise given.refuse("has one of certificate_file and key_file: give both, or none")
    if (settings.username is None) != (settings.password is None):
        raise given.refuse("has one of username and password_file: give both, or none")
    oauth = {
        "oauth_token_url": settings.oauth_token_url,
        "oauth_client_id": settings.oauth_client_id,
        "oauth_client_secret_file": settings.oauth_client_secret,
    }
    missing = [name for name, value in oauth.items() if value is None]
    has_oauth = len(missing) < len(oauth) or settings.oauth_scope is not None
    if has_oauth and missing:
        raise given.refuse(f"names a client of an OpenID provider, which needs {' and '.join(missing)}")
    if sum((settings.username is not None, settings.token is not None, has_oauth)) > 1:
        raise given.refuse("says in more than one way who asks; keep one of username, token_file and oauth_client_id")
