"""Where snapshot files are, as a path or a URL says it. An object store is imported where one is used."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from tablegate.gateway.stores.snapshots.files import BadSnapshotsUrl, DirectoryFiles, SnapshotFiles


def open_files(url: str) -> SnapshotFiles:
    """Return the files at a path or URL; raise `BadSnapshotsUrl`, or `ModuleNotFoundError` without the extra for it."""
    parts = urlsplit(url)
    if not parts.scheme:
        return DirectoryFiles(Path(url))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise BadSnapshotsUrl(f'"{url}" is no directory; give a path, or file:///path')
        return DirectoryFiles(Path(unquote(parts.path)))
    from tablegate.gateway.stores.snapshots.objects import ObjectFiles

    return ObjectFiles(url)
