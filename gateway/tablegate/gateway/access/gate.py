"""The gate: who calls, and may he? Asked once for each call, before its request is read.

It is made of one file, the access file, in which both stand: credentials (`access.credentials`) and policy
(`access.policy`). The file is read again when it changes. One that is wrong changes nothing: the log says so, and what
was read before counts.
"""

import logging
import math
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tablegate.gateway.access.audit import AuditLog, audit_log_of
from tablegate.gateway.access.credentials import Authenticator, authenticator_of
from tablegate.gateway.access.policy import Forbidden, Policy, Right
from tablegate.gateway.access.principal import AccessFileError, Principal, Unauthenticated
from tablegate.gateway.access.rates import FREE, Kind, RateExceeded, Rates, Usage, rates_of
from tablegate.gateway.access.sections import WatchedFile
from tablegate.gateway.access.views import View
from tablegate.gateway.contract.catalogue import Catalogue, ScanQuery, SubscribeQuery

SECTIONS = frozenset({"api_keys", "audit", "certificates", "issuer", "limit", "policy", "rule"})

RETRY_S = 2.0  # until a wrong file is read again

_GATEWAY = "/tablegate.v1.GatewayService/"
_RIGHTS: Mapping[str, Right] = {
    f"{_GATEWAY}GetStatus": Right.STATUS,
    f"{_GATEWAY}GetTable": Right.METADATA,
    f"{_GATEWAY}WatchTable": Right.METADATA,
    f"{_GATEWAY}Explain": Right.EXPLAIN,
    f"{_GATEWAY}GetHistory": Right.HISTORY,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Right.REFLECTION,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Right.REFLECTION,
}
_KNOWN_MAX = 4_096  # of principals and methods, each with the handler of its view, some 7 KB
_OTHER_STREAMS = (f"{_GATEWAY}WatchTable", *(path for path, right in _RIGHTS.items() if right is Right.REFLECTION))
_OPEN = "/grpc.health.v1.Health/"  # for who balances the load: it says of each service whether it is served

_logger = logging.getLogger("tablegate.gateway.access")


class Client(Protocol):
    """Who asks, as far as the connection tells."""

    @property
    def principal(self) -> str | None:
        """Return the name of its verified certificate, None without one."""

    @property
    def address(self) -> str:
        """Return its address."""


class Admitted:
    """Who was let in to a method, None without a credential; and what he sees of its table, None: all of it.

    It is decided once, and then the same for each of his calls. `answer` is for whoever serves them, to keep what
    answers who sees this view.
    """

    __slots__ = ("answer", "principal", "view")

    def __init__(self, principal: Principal | None, view: View | None) -> None:
        self.principal = principal
        self.view = view
        self.answer: Any = None


ADMITTED = Admitted(None, None)
"""Whoever calls a gateway without access control."""


class Gate:
    """Who may come in. One event loop. `version` rises when credentials or policy have changed."""

    def __init__(self, file: Path, catalogue: Catalogue) -> None:
        """Read the access file; raise `AccessFileError`."""
        self.version = 1
        self._file = file
        self._catalogue = catalogue
        self._watched = WatchedFile(file)
        self._trouble = ""
        self._retry_at_s = math.inf  # where the file, or one that it names, was wrong
        self._kinds = {
            **{path: Kind.SCAN for path, query in catalogue.queries.items() if isinstance(query, ScanQuery)},
            **{path: Kind.STREAM for path, query in catalogue.queries.items() if isinstance(query, SubscribeQuery)},
            **dict.fromkeys(_OTHER_STREAMS, Kind.STREAM),
        }
        self._authenticator, self._policy, self._rates, self._audit = _read(file, catalogue)
        self._keys_version = self._authenticator.version
        # By identity: the principal of a credential that was seen before is the same object. It is kept with what was
        # decided, so that no other one gets its number meanwhile.
        self._known: dict[tuple[int, str], Admitted] = {}

    def start(self) -> None:
        """Begin to keep the keys of issuers."""
        self._authenticator.start()

    def close(self) -> None:
        """Let go of threads and files."""
        self._authenticator.close()
        if self._audit is not None:
            self._audit.close()

    def refresh(self) -> None:
        """Read the file again where it has changed. On a timer."""
        # The file may be right, and what it names come later: then nothing of the file itself changes any more.
        if self._watched.has_changed() or time.monotonic() >= self._retry_at_s:
            self._read_again()
        self._authenticator.refresh()
        if self._audit is not None:
            self._audit.flush()
        if self._authenticator.version != self._keys_version:
            self._keys_version = self._authenticator.version
            self.version += 1

    def admit(self, path: str, headers: Mapping[bytes, bytes], client: Client, *, is_get: bool) -> Admitted:
        """Return who calls a method, and what he sees; raise `Unauthenticated` or `Forbidden`."""
        # The common call first: a token that was seen before, for a method that its principal has called.
        value = headers.get(b"authorization")
        if value is not None and (principal := self._authenticator.seen(value)) is not None:
            admitted = self._known.get((id(principal), path))
            if admitted is not None and admitted.principal is principal and self._audit is None:
                return admitted
        if path.startswith(_OPEN):
            return ADMITTED
        principal = None
        try:
            # Where a header says who it is, the certificate is not asked for: that costs more than a seen token.
            certificate = client.principal if value is None else None
            principal = self._authenticator.principal(headers, certificate, is_get=is_get)
            admitted = self._known.get((id(principal), path))
            if admitted is None or admitted.principal is not principal:
                admitted = self._decide(principal, path)
        except (Unauthenticated, Forbidden) as error:
            self._record(principal, path, client, str(error))
            raise
        if self._audit is not None:
            self._record(principal, path, client, None)
        return admitted

    def admit_to(self, right: Right, path: str, headers: Mapping[bytes, bytes], client: Client) -> None:
        """Let a request of a page in, or raise `Unauthenticated` or `Forbidden` where who asks has not got a right."""
        principal = None
        try:
            principal = self._authenticator.principal(headers, client.principal, is_get=True)
            self._check(principal, right)
        except (Unauthenticated, Forbidden) as error:
            self._record(principal, path, client, str(error))
            raise
        self._record(principal, path, client, None)

    def _decide(self, principal: Principal | None, path: str) -> Admitted:
        right, view = _RIGHTS.get(path), None
        if right is not None:
            self._check(principal, right)
        else:
            with _asking_for_credentials(principal):
                view = self._policy.view(principal, path)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        admitted = self._known[id(principal), path] = Admitted(principal, view)
        return admitted

    def _check(self, principal: Principal | None, right: Right) -> None:
        with _asking_for_credentials(principal):
            self._policy.check(principal, right)

    def _record(self, principal: Principal | None, path: str, client: Client, refusal: str | None) -> None:
        if self._audit is None:
            return
        query = self._catalogue.queries.get(path)
        table = None if query is None else query.table.name
        name = None if principal is None else principal.name
        self._audit.record(name, path, table, refusal=refusal, address=client.address if name is None else None)

    @property
    def has_rates(self) -> bool:
        """Return whether the file bounds how much anybody may ask for."""
        return not self._rates.is_empty

    def begin(self, principal: Principal | None, path: str, client: Client) -> Usage:
        """Return what the call of whoever was let in uses from now on; raise `RateExceeded`.

        Whoever begins a stream is to end its usage. Who shows no credential is counted by the address.
        """
        if self._rates.is_empty or path.startswith(_OPEN):
            return FREE
        name = f"address {client.address}" if principal is None else principal.name
        kind = self._kinds.get(path, Kind.UNARY)
        try:
            return self._rates.admit(name, self._policy.roles(principal), path, kind)
        except RateExceeded as error:
            self._record(principal, path, client, str(error))
            raise

    def view_of(self, admitted: Admitted, path: str) -> View | None:
        """Return what who was admitted sees of the table of a query; raise `Forbidden`."""
        return self._policy.view(admitted.principal, path)

    def _read_again(self) -> None:
        try:
            authenticator, policy, rates, audit = _read(self._file, self._catalogue)
        except AccessFileError as error:
            if str(error) != self._trouble:
                _logger.error("the access file is wrong; what was read before counts", extra={"reason": str(error)})
            self._trouble = str(error)
            self._retry_at_s = time.monotonic() + RETRY_S
            return
        self._trouble, self._retry_at_s = "", math.inf
        authenticator.adopt(self._authenticator)
        self._authenticator.close()
        if self._audit is not None:
            self._audit.close()
        self._authenticator, self._policy, self._audit = authenticator, policy, audit
        if rates.settings != self._rates.settings:  # or who has used up a limit would begin anew
            self._rates = rates
        self._known = {}
        authenticator.start()
        self._keys_version = authenticator.version
        self.version += 1
        _logger.info("read the access file again")


@contextmanager
def _asking_for_credentials(principal: Principal | None) -> Iterator[None]:
    """Let who is refused, and shows no credential, know that he might come with one."""
    try:
        yield
    except Forbidden:
        if principal is None:
            raise Unauthenticated("the call shows no credential; show one") from None
        raise


def _read(file: Path, catalogue: Catalogue) -> tuple[Authenticator, Policy, Rates, AuditLog | None]:
    """Return what an access file says; raise `AccessFileError`, whose message names the file."""
    try:
        settings = read_access_file(file)
        paths = {*catalogue.queries, *_RIGHTS}
        authenticator, policy = authenticator_of(settings, file.parent), Policy(settings, catalogue)
        rates = rates_of(settings, paths=paths)
        return authenticator, policy, rates, audit_log_of(settings, file.parent)
    except AccessFileError as error:
        raise AccessFileError(f'access file "{file}": {error}') from None


def read_access_file(file: Path) -> Mapping[str, Any]:
    """Return the sections of an access file; raise `AccessFileError`."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AccessFileError(f"it cannot be read: {error.strerror}; check the path and its mode") from None
    except UnicodeDecodeError:
        raise AccessFileError("it is no UTF-8; save it as such") from None
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
        raise AccessFileError(f"it is no TOML: {error}") from None
    unknown = sorted(settings.keys() - SECTIONS)
    if unknown:
        raise AccessFileError(f'"{unknown[0]}" is no section; there are {", ".join(sorted(SECTIONS))}')
    return settings
