"""The schemas of a topic, from a schema registry with the Confluent API. It is asked once, by a command.

A gateway asks no registry: what it needs is in the manifest, and a registry that is away stops nothing.
"""

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import UUID

from tablegate.gateway.contract.avro_references import written_out
from tablegate.gateway.contract.registry_settings import RegistrySettings, tls_context
from tablegate.gateway.contract.registry_tokens import PLACE, certificate_refusal, new_token

_TIMEOUT_S = 10.0  # for each answer, whole
_AT_ONCE_BYTES = 2**16
_IDS = range(1, 2**31)  # a record has 4 bytes for it, and 0 is that of records without one (`PLAIN_ID`)
_ANSWER_BYTES_MAX = 16 * 2**20  # more than any schema has
_DELETED = "?deleted=true"  # what is deleted softly, too
_LATEST = "latest"
AVRO, PROTOBUF, JSON_SCHEMA = "AVRO", "PROTOBUF", "JSON"
_LANGUAGES = {AVRO: "Avro", PROTOBUF: "Protobuf", JSON_SCHEMA: "JSON Schema"}


class RegistryError(Exception):
    """A registry that does not answer, or has not what is needed; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a subject. `imports`: texts that it refers to, by the name that it calls them; of Avro it has all.

    `guid`: another name of it, of a registry that gives such names.
    """

    subject: str
    schema_id: int
    language: str
    text: str
    imports: Mapping[str, str] = field(default_factory=dict)
    guid: str | None = None
    is_deleted: bool = False

    def __str__(self) -> str:
        return f'schema {self.schema_id} of subject "{self.subject}"'

    def checked(self, language: str) -> "RegisteredSchema":
        """Return this where it is of a language; raise `RegistryError` where not."""
        if self.language != language:
            found = _LANGUAGES.get(self.language, self.language)
            raise RegistryError(f"{self} is of {found}, not of {_LANGUAGES[language]}; choose its codec")
        return self


def avro_schemas(registry: RegistrySettings, subject: str) -> list[RegisteredSchema]:
    """Return the schemas of all versions of a subject, the newest last; raise `RegistryError`, `KafkaSettingsError`.

    Those before are some that were deleted softly: records that have their ids are still there.
    """
    asked = _Asked(registry)
    listed = asked.versions(subject)
    deleted = [version for version in asked.versions(subject, deleted=True) if version not in listed]
    before = (replace(asked.version(subject, version), is_deleted=True) for version in deleted)
    kept = [one for one in before if one.language == AVRO]
    return [*kept, *(asked.version(subject, version).checked(AVRO) for version in listed)]


def newest_schema(registry: RegistrySettings, subject: str, *, timeout_s: float = _TIMEOUT_S) -> RegisteredSchema:
    """Return the newest schema of a subject; raise `RegistryError` and `KafkaSettingsError`."""
    return _Asked(registry, timeout_s).version(subject, _LATEST)


def _path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


class _Asked:
    """A registry that is asked; raises `RegistryError`, and when made `KafkaSettingsError`."""

    def __init__(self, registry: RegistrySettings, timeout_s: float = _TIMEOUT_S) -> None:
        self._registry = registry
        self._timeout_s = timeout_s
        self._where, *self._others = registry.url.split(",")
        self._who = _who(registry)
        self._context = tls_context(registry)

    def get(self, path: str, subject: str) -> Any:
        """Return what the registry answers about a subject."""
        while True:
            try:
                data = self._read(path)
            except HTTPError as error:
                error.close()
                if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR and self._others:
                    self._where = self._others.pop(0)
                    continue
                raise self._refusal(subject, error.code) from None
            except (HTTPException, OSError) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    whose = f"the schema registry at {self._where} has a certificate"
                    raise RegistryError(certificate_refusal(whose, self._registry, str(error))) from None
                if self._others:
                    self._where = self._others.pop(0)
                    continue
                raise RegistryError(
                    f"no schema registry answers at {self._where}: {error}; correct --schema-registry, or the section "
                    "[registry]"
                ) from None
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                raise self._strange(subject) from None

    def _read(self, path: str) -> bytes:
        """Return the registry's answer; raise `HTTPError`, `HTTPException` and `OSError`."""
        accept = "application/vnd.schemaregistry.v1+json, application/json"
        request = Request(self._where + path, headers={"Accept": accept})
        for name, text in self._who.items():
            request.add_unredirected_header(name, text)  # whom a redirect leads to is nobody's to trust
        until_s = time.monotonic() + self._timeout_s
        data = bytearray()
        with urlopen(request, timeout=self._timeout_s, context=self._context) as answer:
            # A read waits for each of its bytes anew, so what comes a byte at a time would have no end.
            while part := answer.read1(_AT_ONCE_BYTES):
                data += part
                if len(data) + (answer.length or 0) > _ANSWER_BYTES_MAX:
                    raise OSError(f"its answer has more than {_ANSWER_BYTES_MAX // 2**20} MiB")
                if time.monotonic() > until_s:
                    raise OSError(f"not all of its answer has come in {self._timeout_s:g} s")
        if answer.length:
            raise IncompleteRead(bytes(data), answer.length)  # which such a read does not say
        return bytes(data)

    def _refusal(self, subject: str, status: int) -> RegistryError:
        if status == HTTPStatus.NOT_FOUND:
            return RegistryError(
                f'the schema registry at {self._where} has no subject "{subject}"; let a producer register its '
                "schema first, or name another subject"
            )
        why = _why_refused(self._registry, status)
        return RegistryError(f'the schema registry at {self._where}: subject "{subject}": {why}')

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions, the newest last. `deleted`: with those that are so softly."""
        found = self.get(f"{_path(subject)}/versions{_DELETED if deleted else ''}", subject)
        if isinstance(found, list) and found and all(isinstance(one, int) for one in found):
            return found
        raise self._strange(subject)

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        """Return one version of a subject."""
        found = self.get(f"{_path(subject)}/versions/{version}{'' if version == _LATEST else _DELETED}", subject)
        try:
            language, text = str(found.get("schemaType", AVRO)), str(found["schema"])
            referred = dict(self._referred(found.get("references") or (), set()))
            if referred and language == AVRO:
                text, referred = written_out(text, referred.values()), {}
            schema_id = found["id"]
            if type(schema_id) is not int or schema_id not in _IDS:
                raise ValueError
            guid = None if found.get("guid") is None else str(UUID(found["guid"]))
            return RegisteredSchema(subject, schema_id, language, text, referred, guid)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise self._strange(subject) from None

    def _strange(self, subject: str) -> RegistryError:
        return RegistryError(
            f'the schema registry at {self._where}: subject "{subject}": its answer is not one of Confluent\'s API; '
            "correct --schema-registry, which may lack a path such as /apis/ccompat/v7"
        )

    def _referred(
        self, references: Iterable[Mapping[str, Any]], asked: set[tuple[str, int]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the schemas that these references come to, those that they refer to among them; each once."""
        for reference in references:
            subject, version = str(reference["subject"]), int(reference["version"])
            if (subject, version) in asked:
                continue
            asked.add((subject, version))
            found = self.get(f"{_path(subject)}/versions/{version}{_DELETED}", subject)
            yield from self._referred(found.get("references") or (), asked)
            yield str(reference["name"]), str(found["schema"])


def _why_refused(registry: RegistrySettings, status: int) -> str:
    """Return what a status means, and what to do about it."""
    who = "who asks"
    if registry.username is not None:
        who = f'user "{registry.username}"'
    elif registry.oauth_client_id is not None:
        who = f'client "{registry.oauth_client_id}"'
    elif registry.token is not None:
        who = f"the token of {registry.token.source()}"
    if status == HTTPStatus.UNAUTHORIZED:
        return f"it does not let in {who}; correct it {PLACE}"
    if status == HTTPStatus.FORBIDDEN:
        return f"it gives {who} no right to read it; add that right there"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"it answers with status {status}; ask again when it is well"
    return f"it answers with status {status}; correct --schema-registry, or what is between"


def _who(registry: RegistrySettings) -> dict[str, str]:
    """Return the headers that say who asks."""
    if registry.token is not None or registry.oauth_client_id is not None:
        token = registry.token.current() if registry.token is not None else new_token(registry)
        named = {
            "target-sr-cluster": registry.confluent_cluster,
            "Confluent-Identity-Pool-Id": registry.confluent_identity_pool,
        }
        return {"Authorization": f"Bearer {token}", **{name: text for name, text in named.items() if text is not None}}
    if registry.username is None or registry.password is None:
        return {}
    user = f"{registry.username}:{registry.password.current()}"
    return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
