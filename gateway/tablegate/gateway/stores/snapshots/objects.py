"""Snapshot files in an object store: S3 and what speaks as it does, Google Cloud Storage, Azure.

An object is there when its upload is complete, and not before. Of one that was broken off, parts may be left that
nobody sees; a rule of the bucket removes them. Who the gateway is to the store, and where that is, say the usual
variables of the environment, and the services of a cloud that give its machines their rights.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url
from typing_extensions import override

from tablegate.gateway.stores.snapshots.files import (
    READ_BYTES,
    BadSnapshotsUrl,
    FilesUnavailable,
    NewFile,
    SnapshotFile,
    SnapshotFiles,
)

SCHEMES = ("s3", "gs", "az")
UPLOAD_BYTES = 16 << 20  # of a part: an upload has at most 10,000
UPLOADS_AT_ONCE = 2  # parts: they are in memory
RETRIES_MAX, TRIES_S = 3, 60.0  # of a request, which is for some megabytes

# Of the text of an error. Below its first line are details as Rust has them, with what went wrong on the network.
_PAGE = re.compile(r"\s*[<{].*")
_SETTINGS = re.compile(r", max_retries: \d+, retry_timeout: \S+ (?= -)")
_CAUSE = re.compile(r'(?:\b(?:message|error): "|\bsource: (?=TimedOut\b|BadScheme\b))([^"\n,]+)')
_NAMED = {"TimedOut": "no answer in time", "BadScheme": "it has http://, which has to be allowed"}

_ERRORS = (BaseError, OSError, ValueError)  # what obstore raises where the store does not answer as it should


class ObjectFiles(SnapshotFiles):
    """Objects below a URL such as s3://bucket/folder."""

    def __init__(self, url: str, *, read_bytes: int = READ_BYTES) -> None:
        self._url = url
        self._read_bytes = read_bytes
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not parts.netloc:
            names = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise BadSnapshotsUrl(f'snapshots cannot be kept at "{url}"; give a directory, or a bucket: {names}')
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise BadSnapshotsUrl(
                "the URL of snapshots is a bucket and a folder alone; give what proves who the gateway is in the "
                "environment, such as AWS_ACCESS_KEY_ID"
            )
        try:
            # Options of the client would take the place of those in the environment, such as AWS_ALLOW_HTTP. By itself
            # it gives a connection 5 seconds, and a request 30.
            self._store: Any = from_url(
                url, retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=TRIES_S)}
            )
        except _ERRORS as error:
            raise BadSnapshotsUrl(f'snapshots cannot be kept at "{url}": {_sentence(error)}') from None

    @override
    def list(self, folder: str) -> Iterator[SnapshotFile]:
        try:
            for some in obstore.list(self._store, folder):
                for each in some:
                    yield SnapshotFile(each["path"], each["size"])
        except _ERRORS as error:
            raise self._unavailable(error) from error

    @override
    def create(self, name: str) -> NewFile:
        try:
            file = obstore.open_writer(self._store, name, buffer_size=UPLOAD_BYTES, max_concurrency=UPLOADS_AT_ONCE)
        except _ERRORS as error:
            raise self._unavailable(error) from error
        return _NewObject(self, file)

    @override
    def read(self, file: SnapshotFile) -> Iterator[bytes]:
        # Each request has its own time: a stream of all would end while whoever stores the rows takes longer.
        for start in range(0, file.size_bytes, self._read_bytes):
            end = min(start + self._read_bytes, file.size_bytes)
            try:
                yield bytes(obstore.get_range(self._store, file.name, start=start, end=end))
            except _ERRORS as error:
                raise self._unavailable(error) from error

    @override
    def remove(self, name: str) -> None:
        try:
            obstore.delete(self._store, name)
        except FileNotFoundError:
            return
        except _ERRORS as error:
            raise self._unavailable(error) from error

    @override
    def tidy(self, folder: str) -> None:
        """Nothing that is here is unfinished."""

    def _unavailable(self, error: Exception) -> FilesUnavailable:
        return FilesUnavailable(f'"{self._url}" cannot be used: {_sentence(error)}')


class _NewObject(NewFile):
    """An object on its way."""

    def __init__(self, files: ObjectFiles, file: Any) -> None:
        self._files = files
        self._file: Any = file

    @override
    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except _ERRORS as error:
            raise self._files._unavailable(error) from error

    @override
    def commit(self) -> None:
        try:
            self._file.close()
        except _ERRORS as error:
            raise self._files._unavailable(error) from error
        self._file = None

    @override
    def discard(self) -> None:
        self._file = None  # it was never closed, so it is no object


def _sentence(error: Exception) -> str:
    """Return what went wrong, without the page of XML, the settings and the many details that come with it."""
    line, _, details = (str(error).strip() or type(error).__name__).partition("\n")
    line = _PAGE.sub("", _SETTINGS.sub("", line)).rstrip(" :")
    cause = _CAUSE.search(details)
    return line if cause is None or cause[1] in line else f"{line}: {_NAMED.get(cause[1], cause[1])}"
