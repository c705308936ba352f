"""`tablegate console`: where the console of a gateway is. A browser opens it, if a person asks."""

import http.client
import ssl
import sys
import webbrowser
from http import HTTPStatus

from tablegate.gateway.cli.connecting import HTTPS, LOCAL, Address, AskError, Trust, target_of, trust
from tablegate.gateway.cli.errors import fail

_PATH = "/console"
_TIMEOUT_S = 5.0  # a person waits


def console(address: Address = LOCAL) -> None:
    """Open the console of a gateway, at its admin port where it has one. Without a terminal, print where it is."""
    try:
        url = _url(address, trust())
    except AskError as error:
        fail(error)
    print(url)
    if sys.stdout.isatty():
        webbrowser.open(url)


def _url(address: str, trust: Trust) -> str:
    """Return where the console is; raise `AskError` where there is none."""
    target = target_of(address)
    is_tls = address.startswith(HTTPS) or trust.is_of_tls
    status = _asked(target, _context(trust) if is_tls else None)
    if status != HTTPStatus.OK:
        raise AskError(
            f"the gateway at {address} has no console (HTTP {status}): name the address of its --admin; a gateway "
            "without one needs --reflection"
        )
    return f"{'https' if is_tls else 'http'}://{target}{_PATH}"


def _asked(target: str, context: ssl.SSLContext | None) -> int:
    """Return the status of the answer to a request for the console."""
    if context is None:
        connection = http.client.HTTPConnection(target, timeout=_TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(target, timeout=_TIMEOUT_S, context=context)
    try:
        connection.request("GET", _PATH)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise AskError(
            f"no gateway answers at {target} ({str(error) or type(error).__name__}): start one with `tablegate serve`, "
            f"or name it with --address; use {HTTPS}HOST:PORT if it speaks TLS"
        ) from None
    finally:
        connection.close()


def _context(trust: Trust) -> ssl.SSLContext:
    """Return how a certificate is checked; raise `AskError` where a file cannot be used."""
    trust.credentials()  # whose errors name the file
    try:
        context = ssl.create_default_context(cafile=trust.ca)
        if trust.certificate is not None:
            context.load_cert_chain(trust.certificate, trust.key)
    except ssl.SSLError as error:
        raise AskError(f"the files of --ca, --cert and --key cannot be used: {error.reason}; check them") from None
    return context
