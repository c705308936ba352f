"""`tablegate new`: a project of one's own to start from. Its files lie in `starter-project` as they are."""

import shutil
from collections.abc import Sequence
from pathlib import Path

STARTER = Path(__file__).parent / "starter-project"


class NewError(Exception):
    """Why no project can be made there, in one sentence."""


def make_project(directory: Path) -> Sequence[str]:
    """Make a project in a directory that is empty or not there; return what to say; raise `NewError`."""
    try:
        if directory.is_dir() and any(directory.iterdir()):
            raise NewError(f'directory "{directory}" is not empty; give another one, or a new name')
        directory.mkdir(parents=True, exist_ok=True)
        files = sorted(file for file in STARTER.iterdir() if file.is_file())
        for file in files:
            shutil.copyfile(file, directory / file.name)
    except OSError as error:
        raise NewError(f'no project can be made in "{directory}": {error.strerror}; give another directory') from None
    commands = [line for line in (STARTER / "README.md").read_text().splitlines() if line.startswith("    ")]
    made = ", ".join(file.name for file in files)
    return [f"made {directory}: {made}", "next:", f"    cd {directory}", *commands]
