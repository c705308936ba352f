"""How a Kafka cluster is reached: one configuration for gateways, jobs and commands.

    kafka.toml ◄── TABLEGATE_KAFKA_… ◄── options of a command       the right one wins
         │
         ▼
    KafkaSettings ──► librdkafka()   gateways, and what a job asks and writes itself
                 └──► java()         Spark's sources and sinks

A process is told once how it reaches a cluster (`use`), and knows it by its bootstrap servers from then on. So plans,
logs and what Spark sends to executors have the servers alone, and no secret.

The Java client gets no secret either, but where it is: Kafka's config providers read the file, or the environment,
where the client runs. What Spark shows of its options is a path.

Decision: docs/decisions/0091-one-configuration-for-kafka.md
Decision: docs/decisions/0121-sources-on-another-cluster.md
Decision: docs/decisions/0168-a-prefix-ends-where-no-table-does.md
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tablegate.gateway.contract import msk
from tablegate.gateway.contract.kafka_file import Given, KafkaSettingsError, Secret

PLAINTEXT, TLS, SASL, SASL_TLS = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, TLS, SASL, SASL_TLS)
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER, msk.MECHANISM)
NO_NAME_CHECK = "none"
SECURITY_PROTOCOL = "security.protocol"

# Names that librdkafka and the Java client have in common. What else they can be told would change how records are read
# or written, which the product decides.
OPTIONS = (
    "client.rack",
    "connections.max.idle.ms",
    "socket.connection.setup.timeout.ms",
    "ssl.endpoint.identification.algorithm",
)

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,5})")
_PORT_MAX = 65_535
# A topic's name has 249 characters at most. No table's name has a dot or a hyphen: so where a prefix ends with one, no
# topic of another prefix, or of none, is called as one of ours.
_PREFIX = re.compile(r"([A-Za-z0-9._-]{0,99}[.-])?")
_PKCS8 = "-----BEGIN PRIVATE KEY-----"
_MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_PROVIDERS = {
    "dir": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    "env": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """How a cluster is reached. Files are PEM; `None` is what is not needed.

    `bootstrap`: HOST:PORT, several with commas. `topic_prefix`: how the names of this installation's topics begin, so
    that it and others on the same cluster do not see each other. `mechanism` is of SASL. `oauth_…`: a client of an
    OpenID provider, for OAUTHBEARER. `aws_region` is for AWS_MSK_IAM. `options`: further ones of `OPTIONS`. `sources`:
    the cluster that has the sources of jobs, where that is another one.
    """

    bootstrap: str
    topic_prefix: str = ""
    protocol: str = PLAINTEXT
    mechanism: str | None = None
    username: str | None = None
    password: Secret | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: Secret | None = None
    oauth_scope: str | None = None
    aws_region: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    sources: "KafkaSettings | None" = None

    def own_topic(self, name: str) -> str:
        """Return the name of a topic of this installation."""
        return self.topic_prefix + name

    def librdkafka(self) -> dict[str, Any]:
        """Return the settings as librdkafka has them, the servers among them. Secrets are in them as they are."""
        wanted: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            SECURITY_PROTOCOL: self.protocol if self.protocol != PLAINTEXT else None,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": _secret(self.password),
            "ssl.ca.location": _text(self.ca_file),
            "ssl.certificate.location": _text(self.certificate_file),
            "ssl.key.location": _text(self.key_file),
        }
        if self.mechanism == OAUTHBEARER:
            wanted |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.oauth_token_url,
                "sasl.oauthbearer.client.id": self.oauth_client_id,
                "sasl.oauthbearer.client.secret": _secret(self.oauth_client_secret),
                "sasl.oauthbearer.scope": self.oauth_scope,
            }
        if self.mechanism == msk.MECHANISM:
            wanted |= {"sasl.mechanism": OAUTHBEARER, msk.TOKEN_OPTION: msk.TokenSigner(self.aws_region or "")}
        return {**{name: value for name, value in wanted.items() if value is not None}, **self.options}

    def secret_files(self) -> dict[str, str]:
        """Return the files of those settings of librdkafka that are secret, by their names."""
        secrets = {"sasl.password": self.password, "sasl.oauthbearer.client.secret": self.oauth_client_secret}
        return {name: str(one.file) for name, one in secrets.items() if one is not None and one.file is not None}

    def files(self) -> list[Path]:
        """Return all files that these settings name."""
        pem = (self.ca_file, self.certificate_file, self.key_file)
        of_sources = self.sources.files() if self.sources is not None else []
        return [*(file for file in pem if file is not None), *map(Path, self.secret_files().values()), *of_sources]

    def java(self) -> dict[str, str]:
        """Return the settings as the Java client has them, the servers among them. No secret is in them."""
        wanted: dict[str, str | None] = {
            "bootstrap.servers": self.bootstrap,
            SECURITY_PROTOCOL: self.protocol if self.protocol != PLAINTEXT else None,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": self._login(),
            "ssl.truststore.type": "PEM" if self.ca_file else None,
            "ssl.truststore.location": _text(self.ca_file),
        }
        if self.certificate_file is not None and self.key_file is not None:
            wanted |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": Secret("", self.certificate_file).reference(),
                "ssl.keystore.key": Secret("", self.key_file).reference(),
            }
        if self.mechanism == OAUTHBEARER:
            wanted |= {
                "sasl.login.callback.handler.class": _OAUTH_HANDLER,
                "sasl.oauthbearer.token.endpoint.url": self.oauth_token_url,
            }
        if self.mechanism == msk.MECHANISM:
            wanted |= msk.JAVA
        found = {**{name: value for name, value in wanted.items() if value is not None}, **self.options}
        if found.get("ssl.endpoint.identification.algorithm") == NO_NAME_CHECK:
            found["ssl.endpoint.identification.algorithm"] = ""
        if any("${" in value for value in found.values()):
            found["config.providers"] = ",".join(_PROVIDERS)
            found |= {f"config.providers.{name}.class": provider for name, provider in _PROVIDERS.items()}
        return found

    def _login(self) -> str | None:
        """Return what the Java client calls its JAAS configuration."""
        if self.mechanism is None or self.mechanism == msk.MECHANISM:
            return None
        if self.mechanism == OAUTHBEARER:
            given = {
                "clientId": self.oauth_client_id,
                "clientSecret": _reference(self.oauth_client_secret),
                "scope": self.oauth_scope,
            }
        else:
            given = {"username": self.username, "password": _reference(self.password)}
        texts = " ".join(f'{name}="{_escaped(value)}"' for name, value in given.items() if value is not None)
        return f"{_MODULES[self.mechanism]} required {texts};"


_used: dict[str, KafkaSettings] = {}


def use(settings: KafkaSettings) -> str:
    """Have this process reach the cluster by these settings; return its bootstrap servers, by which it is known.

    Settings that say no more than the servers change nothing. Raise `KafkaSettingsError` where others are in use:
    clients that are there would go on by those.
    """
    if settings.sources is not None:
        use(settings.sources)
    used = _used.setdefault(settings.bootstrap, settings)
    if used != settings and settings != KafkaSettings(bootstrap=settings.bootstrap):
        raise KafkaSettingsError(
            f"this process reaches Kafka at {settings.bootstrap} by other settings already: "
            "start another one, or give both the same file"
        )
    return settings.bootstrap


def settings_of(bootstrap: str) -> KafkaSettings:
    """Return how this process reaches a cluster: in plain text, where it was told nothing."""
    return _used.get(bootstrap) or KafkaSettings(bootstrap=bootstrap)


def source_cluster(bootstrap: str) -> str:
    """Return the bootstrap servers of the cluster that has the sources of jobs whose tables are in this one."""
    sources = settings_of(bootstrap).sources
    return sources.bootstrap if sources is not None else bootstrap


def own_topic(bootstrap: str, name: str) -> str:
    """Return the name of a topic of this installation."""
    return settings_of(bootstrap).own_topic(name)


def own_group(bootstrap: str, name: str) -> str:
    """Return the name of a consumer group of this installation. It begins the same in all, for the rights of users."""
    prefix = settings_of(bootstrap).topic_prefix
    return f"{name}@{prefix}" if prefix else name


def needs_msk() -> bool:
    """Return whether this process reaches a cluster by IAM of Amazon MSK, for which Spark needs one more jar."""
    return any(settings.mechanism == msk.MECHANISM for settings in _used.values())


def spark_options(bootstrap: str) -> dict[str, str]:
    """Return what Spark's Kafka sources and sinks are told to reach a cluster."""
    return {f"kafka.{name}": value for name, value in settings_of(bootstrap).java().items()}


def load_settings(
    file: Path | None = None,
    *,
    bootstrap: str | None = None,
    source_bootstrap: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> KafkaSettings:
    """Return the settings of a file, over which the environment goes, and `bootstrap`; raise `KafkaSettingsError`.

    `file`: TOML, with the names of `KafkaSettings`; a secret is named by the file that it is in: `password_file`. Paths
    in it are relative to it. Its section `[sources]` has the same of another cluster, as do variables that begin with
    TABLEGATE_KAFKA_SOURCES_, and `source_bootstrap`.
    """
    given = Given(file, environ)
    settings = _of_cluster(given, bootstrap)
    of_sources = Given(file, environ, section=_SOURCES)
    if of_sources.is_empty and source_bootstrap is None:
        return settings
    sources = _of_cluster(of_sources, source_bootstrap)
    if sources.topic_prefix:
        raise of_sources.refuse("has a topic_prefix, which is of the topics of tables: remove it")
    if {*sources.bootstrap.split(",")} & {*settings.bootstrap.split(",")}:
        raise of_sources.refuse(f"names {sources.bootstrap}, which has the tables, too: leave sources out")
    return replace(settings, sources=sources)


_SOURCES = "sources"


def _of_cluster(given: Given, bootstrap: str | None) -> KafkaSettings:
    settings = KafkaSettings(
        bootstrap=bootstrap or given.text("bootstrap") or "",
        topic_prefix=given.text("topic_prefix") or "",
        protocol=given.one_of("protocol", PROTOCOLS) or PLAINTEXT,
        mechanism=given.one_of("mechanism", MECHANISMS),
        username=given.text("username"),
        password=given.secret("password"),
        ca_file=given.certificates("ca_file"),
        certificate_file=given.certificates("certificate_file"),
        key_file=given.pem("key_file", lambda text: _PKCS8 in text, _KEY_WANTED),
        oauth_token_url=given.text("oauth_token_url"),
        oauth_client_id=given.text("oauth_client_id"),
        oauth_client_secret=given.secret("oauth_client_secret"),
        oauth_scope=given.text("oauth_scope"),
        aws_region=given.text("aws_region"),
        options=_options(given),
    )
    # The section `registry` is of `registry_settings.py`.
    names = {one.name for one in fields(KafkaSettings)}
    given.check_known(names | {"registry"} if given.section == "" else names - {_SOURCES}, secrets=_SECRETS)
    return _checked(settings, given)


def _options(given: Given) -> dict[str, str]:
    found = given.table("options")
    for name in found:
        if name not in OPTIONS:
            raise KafkaSettingsError(f'"{given.file}" options "{name}" cannot be set; these can: {", ".join(OPTIONS)}')
    return {name: str(value) for name, value in found.items()}


# Kafka's Java client does not read what openssl encrypts today (PBES2).
_KEY_WANTED = "unencrypted private key in PKCS #8, as both of Kafka's clients need (openssl pkcs8 -topk8 -nocrypt)"
_SECRETS = ("password", "oauth_client_secret")


def _checked(settings: KafkaSettings, given: Given) -> KafkaSettings:
    """Return settings that a client can be made of, and all of which it uses; raise `KafkaSettingsError`."""

    if not settings.bootstrap and given.section:
        raise given.refuse("names no Kafka brokers: give bootstrap")
    if not settings.bootstrap:
        raise KafkaSettingsError("no Kafka brokers are named: give --bootstrap, or bootstrap in the file of --kafka")
    check_bootstrap(settings.bootstrap)
    if not given.section and _PREFIX.fullmatch(settings.topic_prefix) is None:
        raise given.refuse(
            f'topic_prefix "{settings.topic_prefix}" is not of letters, digits, ".", "_" and "-", at most 100, the '
            'last of them "." or "-", so that no other installation has a topic of that name: give one such as "shop."'
        )
    has_sasl, has_tls = settings.protocol in (SASL, SASL_TLS), settings.protocol in (TLS, SASL_TLS)
    if has_sasl and settings.mechanism is None:
        raise given.refuse(f"protocol {settings.protocol} needs a mechanism: one of {', '.join(MECHANISMS)}")
    if not has_sasl and (settings.mechanism or settings.username or settings.password):
        raise given.refuse(f"names a user, which protocol {settings.protocol} does not send: use SASL_SSL")
    if not has_tls and (settings.ca_file or settings.certificate_file or settings.key_file):
        raise given.refuse(f"names TLS files, which protocol {settings.protocol} does not use: use SSL or SASL_SSL")
    if (settings.certificate_file is None) != (settings.key_file is None):
        raise given.refuse("has one of certificate_file and key_file: give both, or none")
    if settings.mechanism == msk.MECHANISM:
        if settings.protocol != SASL_TLS:
            raise given.refuse(f"mechanism {msk.MECHANISM} needs protocol {SASL_TLS}")
        settings = replace(settings, aws_region=settings.aws_region or msk.region_of(settings.bootstrap))
        needed: dict[str, object] = {"aws_region": settings.aws_region}
    elif settings.mechanism == OAUTHBEARER:
        needed = {
            "oauth_token_url": settings.oauth_token_url,
            "oauth_client_id": settings.oauth_client_id,
            "oauth_client_secret_file": settings.oauth_client_secret,
        }
    elif settings.mechanism is not None:
        needed = {"username": settings.username, "password_file": settings.password}
    else:
        needed = {}
    if missing := [name for name, value in needed.items() if value is None]:
        raise given.refuse(f"mechanism {settings.mechanism} needs {' and '.join(missing)}")
    if settings.mechanism == msk.MECHANISM:
        msk.check_signer(settings.aws_region or "")
    return replace(settings, bootstrap=",".join(one.strip() for one in settings.bootstrap.split(",")))


def host_of(endpoint: str) -> str | None:
    """Return the host of HOST:PORT; None where the text is something else."""
    found = _ENDPOINT.fullmatch(endpoint)
    return found[1] if found is not None and 0 < int(found[2]) <= _PORT_MAX else None


def check_bootstrap(bootstrap: str) -> None:
    """Raise `KafkaSettingsError` where it names no broker, or one as no client understands it."""
    for broker in bootstrap.split(","):
        if host_of(broker.strip().rpartition("://")[2]) is None:
            raise KafkaSettingsError(
                f'bootstrap "{bootstrap}" names no Kafka brokers; give HOST:PORT, several with commas'
            )


def _escaped(text: str) -> str:
    """Return a text as it stands between quotes of JAAS. A reference has no backslash."""
    return text.replace("\\", "\\\\")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _secret(secret: Secret | None) -> str | None:
    return None if secret is None else secret.current()


def _reference(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reference()
