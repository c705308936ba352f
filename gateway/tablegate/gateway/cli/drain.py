"""Draining: a gateway gives its partitions to the others of its cluster before it is stopped."""

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tablegate.gateway.cli.ask import AskError, Gateway
from tablegate.gateway.cli.served import directory_of
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.server.preflight import Holder, holder_of
from tablegate.v1.status_pb2 import GetStatusResponse

LOOK_S = 0.5
LISTED_MAX = 5  # partitions that are named one by one


class DrainError(Exception):
    """What to tell the user, in one sentence."""


def holder(data: Path) -> Holder:
    """Return the gateway that runs on a data directory; raise `DrainError` where none does."""
    found = holder_of(data)
    if found is None:
        raise DrainError(f'no gateway runs on data directory "{data}": give the --data that it was started with')
    return found


def drain(found: Holder, gateway: Gateway, *, timeout_s: float, tell: Callable[[str], object]) -> str:
    """Have a gateway give its partitions away; return its name once it holds none. `gateway` asks that same one.

    `tell` gets a sentence whenever there is progress. Raise `DrainError`, or `AskError` where it does not answer at
    first.
    """
    name = _check(gateway.status())
    try:
        os.kill(found.pid, signal.SIGUSR1)
    except OSError as error:
        raise DrainError(f"process {found.pid} cannot be told to drain: {error.strerror}") from None
    end_s = time.monotonic() + timeout_s
    told = ""
    while True:
        text = _progress(gateway, name)
        if not text:
            return name
        if time.monotonic() >= end_s:
            raise DrainError(f"not drained after {timeout_s:g} s: {text}; it goes on, call again to wait for it")
        if text != told:
            told = text
            tell(text)
        time.sleep(LOOK_S)


def _check(status: GetStatusResponse) -> str:
    """Return the gateway's name; raise `DrainError` where there is nobody who could take its partitions."""
    name = status.gateway_id
    if not name:
        raise DrainError("this gateway stands alone: nobody can take its partitions; start gateways with --advertise")
    if not any(each.alive and not each.record.draining and each.record.gateway_id != name for each in status.gateways):
        raise DrainError(f'no other gateway lives that could take the partitions of "{name}": start one first')
    return name


def _progress(gateway: Gateway, name: str) -> str:
    """Return what is to be waited for, "" for nothing more."""
    try:
        status = gateway.status()
    except AskError as error:
        return f"it does not say how far it is ({error})"
    if not any(each.record.gateway_id == name and each.record.draining for each in status.gateways):
        return f'gateway "{name}" does not say yet that it drains'
    here = [(table.table, partition.partition) for table in status.tables for partition in table.partitions]
    if not here:
        return ""
    directory = directory_of(status)
    nowhere = [
        (table, number)
        for table, number in here
        if all(peer.gateway_id == name for peer in directory.replicas(table, Partition(number)))
    ]
    text = f"{_counted(len(here))} here"
    return f"{text}, {len(nowhere)} on no other gateway yet: {_listed(nowhere)}" if nowhere else text


def _counted(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _listed(partitions: Collection[tuple[str, int]]) -> str:
    names = [f"{table} {number}" for table, number in sorted(partitions)]
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
