"""A broker as companies run it: TLS, mTLS, SASL and rights. Its plain listener is the administrator's."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tests.kit.http.certificates import Authority
from tests.kit.programs.openid import OpenIdProvider

MECHANISMS = ("SSL", "PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"

Right = tuple[ResourceType, str, AclOperation]
"""What is named so, or begins so, and what a user may do with it."""


class SecureKafka:
    """A broker whose users have a password (`password`) and a certificate, and no rights but what `allow` gives."""

    def __init__(self, directory: Path, users: Iterable[str]) -> None:
        self._directory = directory
        self._users = tuple(users)
        self._authority = Authority(directory)
        self._other_authority = Authority(directory, "other")
        self._ports = {"MTLS": free_port(), "SASL": free_port()}
        self.provider = OpenIdProvider(directory, {user: self.password(user) for user in self._users})
        server = self._authority.issue("broker")
        both = directory / "broker-both.pem"
        both.write_bytes(server.key.read_bytes() + server.certificate.read_bytes())
        names = " ".join(f'user_{user}="{self.password(user)}"' for user in self._users)
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,SASL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.certificate),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": ",".join(MECHANISMS[1:]),
            "listener.name.sasl.plain.sasl.jaas.config": f"{_PLAIN} {names};",
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_SCRAM};",
            "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": (
                f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.sasl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.provider.keys.as_uri(),
            "listener.name.sasl.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        self.broker = Broker(
            directory / "data", log_file=directory / "broker.log", settings=settings, listeners=self._ports
        )

    def __enter__(self) -> Self:
        self.provider.__enter__()
        # Of a broker's JVM; it reads keys from no other place.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.provider.keys.as_uri()}"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JDK_JAVA_OPTIONS", allowed)
            self.broker.start()
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        upserts = [
            UserScramCredentialUpsertion(
                user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), self.password(user).encode()
            )
            for user in self._users
        ]
        for done in self._admin.alter_user_scram_credentials(upserts).values():
            done.result(20)
        return self

    def __exit__(self, *_: object) -> None:
        del self._admin  # it would say each second, for as long as the tests run, that its broker is gone
        self.broker.stop()
        self.provider.__exit__()

    @staticmethod
    def password(user: str) -> str:
        """Return the password of a user."""
        return f"{user}-password-7f3a"

    def bootstrap(self, mechanism: str) -> str:
        """Return where users of a mechanism come in."""
        return f"{HOST}:{self._ports['MTLS' if mechanism == 'SSL' else 'SASL']}"

    def allow(self, user: str, rights: Iterable[Right]) -> None:
        """Give a user rights, by whichever mechanism it comes."""
        for done in self._admin.create_acls([*_bindings(user, rights, AclBinding)]).values():
            done.result(20)

    def forbid(self, user: str, rights: Iterable[Right]) -> None:
        """Take rights from a user that were given in the same way."""
        for done in self._admin.delete_acls([*_bindings(user, rights, AclBindingFilter)]).values():
            assert done.result(20), "it had the right"

    def topics(self) -> Iterable[str]:
        """Return the names of the topics that are there."""
        return self._admin.list_topics(timeout=20).topics

    def settings(self, mechanism: str, user: str, *, password: str | None = None, is_known_ca: bool = True) -> Path:
        """Write the file of `--kafka` for a user; return its path."""
        folder = self._directory / f"{user}-{mechanism}-{password is None}-{is_known_ca}"
        folder.mkdir(exist_ok=True)
        authority = self._authority if is_known_ca else self._other_authority
        lines = [f'bootstrap = "{self.bootstrap(mechanism)}"', f'ca_file = "{authority.certificate}"']
        if mechanism == "SSL":
            pair = self._authority.issue(user)
            lines += ['protocol = "SSL"', f'certificate_file = "{pair.certificate}"', f'key_file = "{pair.key}"']
        else:
            (folder / "password").write_text(self.password(user) if password is None else password)
            lines += ['protocol = "SASL_SSL"', f'mechanism = "{mechanism}"']
            if mechanism == "OAUTHBEARER":
                lines += [f'oauth_token_url = "{self.provider.url}"', 'oauth_scope = "kafka"']
                lines += [f'oauth_client_id = "{user}"', 'oauth_client_secret_file = "password"']
            else:
                lines += [f'username = "{user}"', 'password_file = "password"']
        file = folder / "kafka.toml"
        file.write_text("\n".join(lines))
        return file


def _bindings(user: str, rights: Iterable[Right], make: Callable[..., Any]) -> Iterator[Any]:
    for principal in (f"User:{user}", f"User:CN={user}"):
        for kind, name, operation in rights:
            yield make(kind, name, ResourcePatternType.PREFIXED, principal, "*", operation, AclPermissionType.ALLOW)
