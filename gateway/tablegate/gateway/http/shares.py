"""Fair shares of what there is only so much of: connections, streams, waiting calls.

Accounts hold them: principals, and addresses of clients that nobody knows. One account may hold all while nobody else
asks, as an address may be a proxy with thousands behind it. Once all is held, somebody who holds less gets one of the
account that holds the most, unless that would only turn the two around. So nobody can keep others out, nobody is pushed
below an equal share, and what each holds comes to rest.

Decision: docs/decisions/0111-a-full-gateway-is-shared.md
"""

import asyncio
import ipaddress
from collections.abc import Hashable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)

_NETWORK_BITS = 64  # of an IPv6 address: the rest of it is for each client to choose


class Shares(Generic[Holder]):
    """Who holds how many. All methods take the same time, however many there are."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[Holder, None]] = {}
        self._of_size: list[dict[str, None]] = [{}]  # accounts by how many holders they have; the last has some
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Holder]:
        return chain.from_iterable(self._holders.values())

    def of(self, account: str) -> int:
        """Return how many an account has."""
        return len(self._holders.get(account, ()))

    def add(self, account: str, holder: Holder) -> None:
        """Count a holder of an account, once each."""
        holders = self._holders.setdefault(account, {})
        self._resize(account, len(holders), len(holders) + 1)
        holders[holder] = None
        self._count += 1

    def remove(self, account: str, holder: Holder) -> None:
        """Count it no more, if it is still counted."""
        holders = self._holders.get(account, {})
        if holder not in holders:
            return
        del holders[holder]
        self._count -= 1
        self._resize(account, len(holders) + 1, len(holders))
        if not holders:
            del self._holders[account]

    def rivals(self, account: str) -> Iterator[Holder]:
        """Yield the holders of the account with the most, newest first, if it is to make room for this one."""
        largest = len(self._of_size) - 1
        if largest < self.of(account) + 2:
            return
        yield from reversed(self._holders[next(iter(self._of_size[largest]))])

    def _resize(self, account: str, before: int, after: int) -> None:
        of_size = self._of_size
        if after == len(of_size):
            of_size.append({})
        if before:
            del of_size[before][account]
        if after:
            of_size[after][account] = None
        while len(of_size) > 1 and not of_size[-1]:
            of_size.pop()


@lru_cache(maxsize=4_096)
def network_of(host: str) -> str:
    """Return the part of an address that a client cannot choose: all of IPv4, the network of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # no socket of the internet
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False).network_address)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of a client, as far as it cannot choose it; "" where the system does not know any more."""
    peer = transport.get_extra_info("peername")
    return network_of(peer[0]) if peer else ""
