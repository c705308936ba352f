"""API keys: a file of their hashes says whose they are.

    [[key]]
    name = "reports"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    claims = { roles = ["reader"] }
    expires = 2027-06-30T00:00:00Z

The hash is a fast one. Slow ones, as for passwords, are for what people choose: they make each guess dear. A key has at
least 128 random bits (`new_key`: 256), of which nobody guesses one at any price, and it is asked for with each call.

A key is found by its hash. How long that takes tells of the hash at most, and no key can be made to fit a hash.
"""

import logging
import math
import re
import secrets
import tomllib
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from tablegate.gateway.access.principal import AccessFileError, Principal, Unauthenticated
from tablegate.gateway.access.sections import Section, WatchedFile, read_file

FILE_BYTES_MAX = 4 * 1024 * 1024  # some 20,000 keys
KEY_BYTES_MAX = 512  # of a key as it is shown: what is longer is hashed for nothing

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_CHARACTERS_MAX = 256

_logger = logging.getLogger("tablegate.gateway.access")


class ApiKeys:
    """The keys of a file, as they are now; as they last were right, where the file is wrong. One thread."""

    def __init__(self, file: Path, *, clock: Callable[[], float]) -> None:
        """Read the file; raise `AccessFileError`. `clock` gives seconds since 1970."""
        self._file = file
        self._clock = clock
        self._watched = WatchedFile(file)
        self._trouble = ""
        self._keys = _read(file)

    def principal(self, key: bytes) -> Principal | None:
        """Return whose key it is; None where it is none of the file. Raise `Unauthenticated` where it has expired."""
        if len(key) > KEY_BYTES_MAX:
            return None
        found = self._keys.get(sha256(key).digest())
        if found is not None and self._clock() >= found.expires_at_s:
            raise Unauthenticated("the API key has expired; show a newer one")
        return found

    def reload_if_changed(self) -> bool:
        """Read the file again if it changed; return whether there are other keys now."""
        if not self._watched.has_changed():
            return False
        try:
            keys = _read(self._file)
        except AccessFileError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _logger.error("API keys cannot be read; those before stay in use", extra={"reason": self._trouble})
            self._watched.forget()
            return False
        self._trouble = ""
        # A principal that is as before stays the object that it was: others remember it by that.
        self._keys = {digest: kept if (kept := self._keys.get(digest)) == new else new for digest, new in keys.items()}
        _logger.info("read the API keys again", extra={"keys": len(keys)})
        return True


def new_key(name: str) -> tuple[str, str]:
    """Return a new key, and its entry for the file; raise `AccessFileError` for a name that cannot be one."""
    _check_name(name, "the key's name")
    key = f"tg_{secrets.token_urlsafe(32)}"  # people and scanners of secrets know it by its first letters
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return key, f'[[key]]\nname = "{quoted}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n'


def _check_name(name: str, where: str) -> None:
    if not name or len(name) > _NAME_CHARACTERS_MAX or not name.isprintable():
        raise AccessFileError(
            f"{where} is empty, has line breaks or over {_NAME_CHARACTERS_MAX} characters; choose one"
        )


def _read(file: Path) -> dict[bytes, Principal]:
    """Return the principals by the SHA-256 of their keys. A name may have several, so that one key follows another."""
    data = read_file(file, FILE_BYTES_MAX)
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
        raise AccessFileError(f'"{file}" is no TOML: {error}') from None
    entries = Section(content, f'"{file}"', ("key",)).get("key") or []
    if not isinstance(entries, list):
        raise AccessFileError(f'"{file}" "key" is no list of tables; write [[key]]')
    keys: dict[bytes, Principal] = {}
    for number, entry in enumerate(entries, 1):
        section = Section(entry, f'"{file}" [[key]] number {number}', ("name", "sha256", "claims", "expires"))
        name = section.text("name")
        _check_name(name, f'"{file}" [[key]] number {number} "name"')
        digest = section.text("sha256")
        if not _SHA256.fullmatch(digest):
            raise section.refuse('"sha256" is not 64 hexadecimal digits in lower case; give the SHA-256 of the key')
        if (found := bytes.fromhex(digest)) in keys:
            raise section.refuse("has the key of another one; make a new key")
        keys[found] = Principal(f"key {name}", section.table("claims"), _expiry(section))
    return keys


def _expiry(section: Section) -> float:
    if "expires" not in section:
        return math.inf
    expires = section.get("expires")
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise section.refuse('"expires" is no time with a zone; write it like 2027-06-30T00:00:00Z')
    return expires.timestamp()
