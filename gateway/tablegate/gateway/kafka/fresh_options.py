"""librdkafka's options, with the secrets that their files have now: a client that is made later takes what has changed.

Paths of certificates and keys need nothing of this, as each new client reads them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from tablegate.gateway.contract.kafka_file import Secret


class FreshOptions(Mapping[str, Any]):
    """Options, of which some are read from `secret_files`, by option, whenever they are asked for."""

    def __init__(self, options: Mapping[str, Any], secret_files: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._secret_files = secret_files or {}

    def also(self, more: Mapping[str, Any]) -> "FreshOptions":
        """Return these and others, which win."""
        return FreshOptions({**self._options, **more}, self._secret_files)

    @override
    def __getitem__(self, name: str) -> Any:
        text, file = self._options[name], self._secret_files.get(name)
        return text if file is None else Secret(text, Path(file)).current()

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    @override
    def __len__(self) -> int:
        return len(self._options)


def fresh(options: Mapping[str, Any] | None) -> FreshOptions:
    """Return options as they are, or as those that do not change."""
    return options if isinstance(options, FreshOptions) else FreshOptions(options or {})
