"""The sections `[[issuer]]` of an access file. Needs the extra `access`, so it is imported where there is one."""

from collections.abc import Callable
from pathlib import Path

from tablegate.gateway.access.issuer_keys import ALGORITHMS, IssuerKeys, KeySource, is_safe_url
from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.access.sections import Section
from tablegate.gateway.access.tokens import Issuer, TokenRules

ISSUERS_MAX = 20  # each has a thread
_KNOWN = (
    "issuer",
    "audience",
    "jwks_url",
    "jwks_file",
    "ca_file",
    "algorithms",
    "name_claim",
    "leeway_s",
    "refresh_s",
)
_PLAIN = "does not begin with https://, without a user in it; http:// is for this machine alone"


def issuers_of(entries: object, directory: Path, *, on_change: Callable[[], object]) -> dict[str, Issuer]:
    """Return the issuers by name; raise `AccessFileError`. `on_change` is called when keys of one have changed."""
    if not isinstance(entries, list) or not 0 < len(entries) <= ISSUERS_MAX:
        raise AccessFileError(f'"issuer" is no list of at most {ISSUERS_MAX} tables; write [[issuer]]')
    issuers: dict[str, Issuer] = {}
    for number, entry in enumerate(entries, 1):
        section = Section(entry, f"[[issuer]] number {number}", _KNOWN, directory)
        issuer = _issuer(section, on_change)
        if issuer.rules.issuer in issuers:
            raise section.refuse('has the "issuer" of another one; make one of both')
        issuers[issuer.rules.issuer] = issuer
    return issuers


def _issuer(section: Section, on_change: Callable[[], object]) -> Issuer:
    name = section.text("issuer")
    if "://" not in name or " " in name:
        raise section.refuse('"issuer" is no URL; write it as the claim iss of its tokens')
    algorithms = section.texts("algorithms", ALGORITHMS)
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            raise section.refuse(f'"algorithms" has "{algorithm}", which is none of {", ".join(ALGORITHMS)}')
    rules = TokenRules(
        issuer=name,
        audiences=section.texts("audience"),
        algorithms=algorithms,
        name_claim=section.text("name_claim", "sub"),
        leeway_s=section.number("leeway_s", 30, 0, 600),
    )
    keys = IssuerKeys(_source(section, name, algorithms), on_change=on_change)
    if keys.source.file is not None:  # what is on this machine can be right before the first call
        try:
            keys.load()
        except AccessFileError as error:
            raise section.refuse(f'has a "jwks_file" that is wrong: {error}') from None
        except (ValueError, RecursionError) as error:
            raise section.refuse(f'"jwks_file" "{keys.source.file}" is no JWKS: {error}; give one') from None
    return Issuer(rules, keys)


def _source(section: Section, issuer: str, algorithms: tuple[str, ...]) -> KeySource:
    file = section.path("jwks_file") if "jwks_file" in section else None
    url = section.text("jwks_url") if "jwks_url" in section else None
    ca_file = section.path("ca_file") if "ca_file" in section else None
    if file is not None and (url is not None or ca_file is not None):
        raise section.refuse("has a jwks_file beside a jwks_url or ca_file; keep the one or the others")
    if url is not None and not is_safe_url(url):
        raise section.refuse(f'"jwks_url" {_PLAIN}')
    if file is None and url is None and not is_safe_url(issuer):
        raise section.refuse(f'"issuer" {_PLAIN}; give jwks_file or jwks_url')
    refresh_s = section.number("refresh_s", 300, 1, 86_400)
    source = KeySource(issuer=issuer, algorithms=algorithms, file=file, url=url, ca_file=ca_file, refresh_s=refresh_s)
    if ca_file is not None:
        try:
            source.tls_context()
        except OSError as error:
            raise section.refuse(f'ca_file "{ca_file}" cannot be used ({error.strerror}); give a PEM file') from None
    return source
