"""Redis with several nodes: each has some of the slots, and each partition is in one slot.

Which node has a slot is asked of any node. Whoever is asked for a slot that has moved says where it is now (MOVED), or
where the key is while a slot moves (ASK), and the commands are sent there. Where a node does not answer, another is
asked who has its slots: after a failover that is another node, and before it nobody answers for them.

Decision: docs/decisions/0138-redis-with-several-nodes.md
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from redis.connection import Connection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.gateway.stores.redis.connection import REST_S, Command, RedisAddress, RedisConnection, as_store_error
from tablegate.gateway.stores.redis.scripts import Script

SLOTS = 16_384
REDIRECTS_MAX = 5  # of a command: a slot that moves more often while it is asked for is in trouble

_ASKING: Command = ("ASKING",)
_SCRIPT_KEY = 3  # its place in a command that runs a script; in all others it is 1
_UNANSWERED = (ClusterDownError, TryAgainError, RedisConnectionError, RedisTimeoutError, StoreUnavailable)

Node = tuple[str, int]
"""Host and port."""


_known: dict[str, Sequence[Node]] = {}
"""Nodes and their copies, by the address of one of them: while that is away, stores are opened by the others."""


class _Block(NamedTuple):
    """Commands that one node runs together: one, or a transaction."""

    slot: int
    commands: Sequence[Command]


class RedisNodes:
    """Runs commands as `RedisConnection` does, each on the node that has its keys.

    Commands of one name in a row may be run in any order, all others are run in the order given. Any thread; a node
    serves one at a time. `first` is one of the nodes.
    """

    def __init__(self, address: RedisAddress, first: RedisConnection, *, timeout_s: float) -> None:
        self.address = address
        self._first = first
        self._timeout_s = timeout_s
        self._nodes: dict[Node, RedisConnection] = {}
        self._slots: list[Node | None] = [None] * SLOTS
        self._asked_s = float("-inf")
        self._ask_slots()

    def call(self, script: Script, keys: Sequence[str], arguments: Iterable[Any]) -> Any:
        """Run a script and return its answer; errors as of `run`."""
        return self.run(script.on(keys, arguments))[0]

    def run(self, *commands: Command) -> list[Any]:
        """Return the answers of commands; raise `StoreUnavailable` or `StoreFull`."""
        answers: list[Any] = []
        for _, blocks in groupby(_blocks(commands), key=lambda block: block.commands[0][0]):
            answers += self._run(list(blocks))
        return answers

    def check_policy(self) -> None:
        """Raise `StoreUnavailable` where a node may evict rows."""
        for node in {node for node in self._slots if node is not None}:
            self._node(node).check_policy()

    def close(self) -> None:
        """Disconnect. Repeats do nothing."""
        for connection in (self._first, *self._nodes.values()):
            connection.close()

    def _run(self, blocks: Sequence[_Block]) -> list[Any]:
        """Return the answers of blocks that may be run in any order: those of one node are sent to it at once."""
        answers: dict[int, Sequence[Any]] = {}  # by the place of the block
        asking: dict[int, Node] = {}  # slots that are about to move, and where to
        for _ in range(REDIRECTS_MAX + 1):
            left = [place for place in range(len(blocks)) if place not in answers]
            if not left:
                return [answer for place in range(len(blocks)) for answer in answers[place]]
            for node, places in self._by_node(blocks, left, asking):
                answers |= self._run_on(node, {place: blocks[place] for place in places}, asking)
        raise StoreUnavailable(f"{self.address.text} moves slots from node to node: ask again")

    def _by_node(
        self, blocks: Sequence[_Block], left: Iterable[int], asking: dict[int, Node]
    ) -> Iterator[tuple[Node | None, Sequence[int]]]:
        places: dict[Node | None, list[int]] = {}
        for place in left:
            slot = blocks[place].slot
            if slot in asking:
                yield asking[slot], [place]
            else:
                places.setdefault(self._slots[slot], []).append(place)
        yield from places.items()

    def _run_on(
        self, node: Node | None, blocks: dict[int, _Block], asking: dict[int, Node]
    ) -> dict[int, Sequence[Any]]:
        """Return the answers of a node; none, and remember where else to ask, where it has the slots no more."""
        if node is None:
            if self._ask_slots() and any(self._slots[block.slot] for block in blocks.values()):
                return {}
            raise StoreUnavailable(f"{self.address.text} has slots that no node serves: look at its CLUSTER INFO")
        connection = self._node(node)
        is_asked = any(block.slot in asking for block in blocks.values())
        try:
            found = connection.exchange(
                *([_ASKING] if is_asked else ()), *(command for block in blocks.values() for command in block.commands)
            )
        except MovedError as error:
            asking.pop(error.slot_id, None)
            self._slots[error.slot_id] = self._named(error)
            return {}
        except AskError as error:
            asking[error.slot_id] = self._named(error)
            return {}
        except _UNANSWERED as error:
            if self._ask_slots() and not any(self._slots[block.slot] == node for block in blocks.values()):
                return {}
            raise _store_error(error, connection.address) from None
        except RedisError as error:
            raise as_store_error(error, connection.address.text) from None
        rest = iter(found[is_asked:])
        return {place: [next(rest) for _ in block.commands] for place, block in blocks.items()}

    def _named(self, error: AskError) -> Node:
        return error.host or self._host, error.port

    @property
    def _host(self) -> str:
        """The host of the node that the URL names, which nodes may leave out."""
        return str(self.address.options.get("host", "127.0.0.1"))

    def _node(self, node: Node) -> RedisConnection:
        connection = self._nodes.get(node)
        if connection is None:
            connection = self._nodes[node] = RedisConnection(
                _at(self.address, node), timeout_s=self._timeout_s, has_others=True
            )
        return connection

    def _ask_slots(self) -> bool:
        """Ask which node has which slot; return whether one said so, or has just said so."""
        now_s = time.monotonic()
        if now_s - self._asked_s < REST_S:
            return True
        self._asked_s = now_s
        for connection in (*map(self._node, _known.get(self.address.text, ())), self._first):
            try:
                [ranges] = connection.exchange(("CLUSTER", "SLOTS"))
            except (RedisError, StoreUnavailable):
                continue
            slots: list[Node | None] = [None] * SLOTS
            found: dict[Node, None] = {}
            for start, end, *nodes in ranges:
                named = [((host or b"").decode().replace("?", "") or self._host, port) for host, port, *_ in nodes]
                slots[start : end + 1] = [named[0]] * (end + 1 - start)
                found |= dict.fromkeys(named)
            self._slots, _known[self.address.text] = slots, tuple(found)
            return True
        return False


Redis = RedisConnection | RedisNodes


def connect(address: RedisAddress, *, timeout_s: float) -> Redis:
    """Return the Redis at an address, with all of its nodes where it is one of several; raise `StoreUnavailable`."""
    failure: StoreUnavailable | None = None
    for each in (address, *(_at(address, node) for node in (*address.others, *_known.get(address.text, ())))):
        found = RedisConnection(each, timeout_s=timeout_s)
        try:
            [answer] = found.run(("INFO", "cluster"))
        except StoreUnavailable as error:
            failure = failure or error
            continue
        if b"cluster_enabled:1" in answer:
            return RedisNodes(address, found, timeout_s=timeout_s)
        if address.others:
            raise StoreUnavailable(f"{each.text} is not one of several nodes: name one Redis in the store's URL")
        return found
    assert failure is not None, "one was tried"
    raise failure


def _blocks(commands: Sequence[Command]) -> Iterator[_Block]:
    rest = iter(commands)
    for command in rest:
        block = [command]
        while command[0] == "MULTI" and block[-1][0] != "EXEC":
            block.append(next(rest))
        first = block[min(1, len(block) - 1)]
        key = first[_SCRIPT_KEY if first[0].startswith("EVALSHA") else 1]
        yield _Block(key_slot(key.encode()), block)


def _at(address: RedisAddress, node: Node) -> RedisAddress:
    """Return the address of a node, with the user, the password and the certificates of another."""
    options = {name: value for name, value in address.options.items() if name != "path"}
    host, port = node
    kind = Connection if address.kind is UnixDomainSocketConnection else address.kind
    return replace(address, text=f"Redis at {host}:{port}", kind=kind, options={**options, "host": host, "port": port})


def _store_error(error: Exception, address: RedisAddress) -> StoreUnavailable:
    return error if isinstance(error, StoreUnavailable) else as_store_error(error, address.text)  # type: ignore[arg-type]
