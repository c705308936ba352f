"""Follow a table: a live table on a terminal, or a JSON object a line for pipes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live
from tablegate.gateway.cli import show
from tablegate.gateway.cli.ask import AskError, Gateway
from tablegate.gateway.cli.live_view import REFRESHES_PER_S, LiveView

from tablegate.client import (
    CatchingUp,
    Current,
    Delete,
    Disconnected,
    Event,
    Reset,
    ResumeTokenRefused,
    SubscribeError,
    Subscription,
    TokenFile,
    TokenMemory,
    Upsert,
)


def follow(
    gateway: Gateway, table: str, fields: list[str], *, as_json: bool, resume: Path | None, changes_only: bool
) -> None:
    """Show the table's rows and then their changes until Ctrl-C; raise `AskError`.

    The token of what was shown is kept in `resume`, and read there at the start.
    """
    tokens = TokenMemory() if resume is None else TokenFile(resume)
    with _explained(resume), _until_interrupted():
        subscription = gateway.subscribe(table, fields, tokens=tokens, changes_only=changes_only)
        with closing(subscription):
            if as_json:
                print_events(subscription)
            else:
                _show_events(LiveView(table, gateway.catalogue().tables[table].row), subscription)


@contextmanager
def _explained(resume: Path | None) -> Iterator[None]:
    """Turn what a subscription raises into a sentence for the user."""
    try:
        yield
    except ResumeTokenRefused:
        raise AskError(
            f'"{resume}" has no token of this gateway, table and fields: delete the file to start over, or name another'
        ) from None
    except SubscribeError as error:
        raise AskError(str(error)) from None
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeDecodeError:
        raise AskError(f'"{resume}" is no token file: name another for --resume') from None
    except OSError as error:
        raise AskError(f'"{resume}" cannot be used for --resume: {error.strerror}; check the path') from None


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """End the block at Ctrl-C or SIGTERM as if it were done."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_events(view: LiveView, events: Subscription) -> None:
    with Live(view, console=show.OUT, refresh_per_second=REFRESHES_PER_S, vertical_overflow="crop"):
        for event in events:
            view.take(event)


def print_events(events: Iterator[Event]) -> None:
    """Print an object for each event, and let whoever reads have it at once."""
    for event in events:
        print(json.dumps(_described(event)), flush=True)


def _described(event: Event) -> dict[str, Any]:
    match event:
        case Upsert(_, row):
            return {"event": "upsert", "row": show.to_dict(row)}
        case Delete(_, message):
            return {"event": "delete", "key": show.to_dict(message)}
        case Reset(token):
            return {"event": "reset", "resume_token": token}
        case CatchingUp(token):
            return {"event": "catching_up", "resume_token": token}
        case Current(_, read_info, token):
            as_of_time = show.to_dict(read_info)["as_of_time"]
            return {"event": "current", "as_of_time": as_of_time, "resume_token": token}
        case Disconnected(code, reason, text, retry_after_s):
            why = {"code": code, "reason": reason, "text": text}
            return {"event": "disconnected", **why, "retry_after_s": round(retry_after_s, 3)}
