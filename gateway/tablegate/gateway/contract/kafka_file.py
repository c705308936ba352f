"""What the file of `--kafka` and the environment have: one section of it, with the environment over it."""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "TABLEGATE_KAFKA_"
CERTIFICATE = "-----BEGIN CERTIFICATE-----"

# In a path: config providers look there for the end of a reference, and JAAS for the end of a text.
_MISREAD = re.compile(r'[:}"\\]')


class KafkaSettingsError(Exception):
    """Settings that cannot be; its text is a sentence that names the file or the variable, and the key."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is shown nowhere: of a file, or of the variable `name` of the environment."""

    text: str = field(repr=False)
    file: Path | None = None
    name: str | None = None

    def current(self) -> str:
        """Return the text as the file has it now; what it was where the file is no longer readable, or empty."""
        if self.file is None:
            return self.text
        try:
            return self.file.read_text().rstrip("\n") or self.text
        except (OSError, UnicodeDecodeError):
            return self.text

    def source(self) -> str:
        """Return where it is from, for a sentence."""
        return f'"{self.file}"' if self.file is not None else str(self.name)

    def reference(self) -> str:
        """Return what Kafka's config providers take the text by, where the Java client runs."""
        return f"${{dir:{self.file.parent}:{self.file.name}}}" if self.file is not None else f"${{env:{self.name}}}"


class ChangedFiles:
    """Tells of files that change, each time once. One thread."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._seen = {file: _state_of(file) for file in files}

    def found(self) -> list[Path]:
        """Return those that have changed since they were asked for last."""
        now = {file: _state_of(file) for file in self._seen}
        changed = [file for file, state in now.items() if state is not None and state != self._seen[file]]
        self._seen |= {file: now[file] for file in changed}
        return changed


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()  # of what a link leads to: Kubernetes replaces that
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class Given:
    """What a section of a file and the environment have. Every method raises `KafkaSettingsError`.

    `section` is empty for what stands before the first one. `is_for_java`: the Java client gets what is in it, too,
    which misreads some characters of paths and of secrets.
    """

    def __init__(
        self, file: Path | None, environ: Mapping[str, str], *, section: str = "", is_for_java: bool = True
    ) -> None:
        self.file = file
        self._environ = environ
        self.section = section
        self._is_for_java = is_for_java
        self._prefix = f"{PREFIX}{section.upper()}_" if section else PREFIX
        self._keys = _parsed(file) if file is not None else {}
        if section:
            self._keys = self.table(section)

    @property
    def is_empty(self) -> bool:
        """Whether neither the section nor the environment says a thing."""
        return not self._keys and not any(name.startswith(self._prefix) for name in self._environ)

    def refuse(self, why: str) -> KafkaSettingsError:
        """Return the error that says what is wrong with all of it."""
        return KafkaSettingsError(f"{self._place()} {why}" if self.file else f"{self._prefix}… {why}")

    def where(self, name: str) -> str:
        """Return where a key has its value from, for a sentence."""
        variable = self._variable(name)
        return variable if variable in self._environ or self.file is None else f"{self._place()} {name}"

    def text(self, name: str) -> str | None:
        """Return a text of one line without quotes."""
        found = self._environ.get(self._variable(name), self._keys.get(name))
        if found is not None and not (isinstance(found, str) and found and found.isprintable() and '"' not in found):
            raise KafkaSettingsError(f"{self.where(name)} is no text without quotes and line breaks; correct it")
        return found

    def one_of(self, name: str, known: tuple[str, ...]) -> str | None:
        """Return one of some texts in capitals."""
        found = self.text(name)
        if found is not None and found.upper() not in known:
            raise KafkaSettingsError(f'{self.where(name)} "{found}" is none of {", ".join(known)}')
        return found and found.upper()

    def pem(self, name: str, fits: Callable[[str], bool], wanted: str) -> Path | None:
        """Return the path of a PEM file whose content fits."""
        path = self._path(name)
        if path is not None and not fits(self._read(name, path)):
            raise KafkaSettingsError(f'{self.where(name)} "{path}" has no {wanted}; give a PEM file')
        return path

    def certificates(self, name: str) -> Path | None:
        """Return the path of a PEM file of certificates."""
        return self.pem(name, lambda text: CERTIFICATE in text, "certificates")

    def secret(self, name: str) -> Secret | None:
        """Return a secret of the environment, or of the file that the key `<name>_file` names."""
        variable = self._variable(name)
        if (text := self._environ.get(variable)) is not None:
            secret, where = Secret(text, name=variable), variable
        elif (path := self._path(f"{name}_file")) is not None:
            where = f'{self.where(f"{name}_file")} "{path}"'
            secret = Secret(self._read(f"{name}_file", path), file=path)
        else:
            return None
        # The Java client reads the file itself, all of it, and has what it reads between quotes.
        if secret.text.endswith("\n"):
            raise KafkaSettingsError(f"{where} ends with a line break, which would be of the secret: use printf")
        is_misread = self._is_for_java and ('"' in secret.text or "\\" in secret.text)
        if not secret.text or not secret.text.isprintable() or is_misread:
            characters = 'a ", a \\ or a control character' if self._is_for_java else "a control character"
            raise KafkaSettingsError(f"{where} is empty, or has {characters}: choose another")
        return secret

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of the section; empty where there is none."""
        found = self._keys.get(name, {})
        if not isinstance(found, dict):
            raise KafkaSettingsError(f'"{self.file}" {name} is no table; write [{name}]')
        return found

    def check_known(self, names: Collection[str], *, secrets: Collection[str]) -> None:
        """Refuse a key that is none of `names`, and a secret that stands in the file itself."""
        known = {*names} - {*secrets} | {f"{name}_file" for name in secrets}
        for name in self._keys:
            if name in secrets:
                raise KafkaSettingsError(
                    f"{self._place()} {name} is a secret: write it into a file of its own, and name that by {name}_file"
                )
            if name not in known:
                raise KafkaSettingsError(f"{self._place()} {name} is unknown; known are {', '.join(sorted(known))}")

    def _place(self) -> str:
        return f'"{self.file}" [{self.section}]' if self.section else f'"{self.file}"'

    def _variable(self, name: str) -> str:
        return self._prefix + name.upper()

    def _path(self, name: str) -> Path | None:
        text = self.text(name)
        if text is None:
            return None
        is_relative_to = self.file.parent if self.file and self._variable(name) not in self._environ else Path()
        path = (is_relative_to / text).absolute()
        if self._is_for_java and (found := _MISREAD.search(str(path))):
            raise KafkaSettingsError(
                f'{self.where(name)} "{path}" has a {found[0]}, which the Java client would misread: use another path'
            )
        return path

    def _read(self, name: str, path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise KafkaSettingsError(f'{self.where(name)} "{path}" cannot be read: {error.strerror}') from None
        except UnicodeDecodeError:
            raise KafkaSettingsError(f'{self.where(name)} "{path}" is no text; name another file') from None


def _parsed(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise KafkaSettingsError(f'"{file}" cannot be read: {error.strerror}') from None
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
        raise KafkaSettingsError(f'"{file}" is no TOML: {error}') from None
