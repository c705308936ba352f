"""Things on shelves behind a gateway, local tables of them, and random requests: who is asked, answers alike."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tablegate.client import open_channel
from tablegate.client.failures import failure_of
from tablegate.client.local import LocalTable
from tablegate.gateway.contract.catalogue import Query, ScanQuery
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of

SHELVES = Path(__file__).parents[1] / "table" / "shelves.proto"
SERVICE = "/shelves.v1.ShelvesService"
OFTEN = {"progress_interval": {"nanos": 100_000_000}}
TEXTS = ("", "a", "a\x00", "a\x00b", "ab", "b", "\xff", "\U0001f600", "n" * 600, "n" * 600 + "z")
NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 7, 2**63 - 1)
FLOATS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"))
TIMES = ((-62135596800, 0), (-1, 999_999_999), (0, 0), (0, 1), (253402300799, 999_999_999), (0, -1), (2**62, 0))
PATHS = ("shop", "code", "address", "address.city", "tags", "state", "opened_time", "score", "*", "no", "tags.x", "")


def shelves() -> Any:
    """Return the catalogue."""
    return catalogue_of(SHELVES)


def query(name: str) -> Query:
    """Return a query by its method's name."""
    return shelves().queries[f"{SERVICE}/{name}"]  # type: ignore[no-any-return]


def thing(choice: random.Random, **fields: Any) -> Any:
    """Return a thing of few values, so that rows share them."""
    row: Any = (
        shelves()
        .tables["things"]
        .row_class(
            shop=choice.choice(TEXTS[:4]),
            number=choice.choice(NUMBERS),
            tags=choice.choices(TEXTS, k=choice.randrange(3)),
        )
    )
    row.code = choice.choice((*TEXTS, f"{row.shop}/{row.number}", f"{row.shop}/{row.number}"))
    if choice.random() < 0.8:
        row.address.city = choice.choice(TEXTS)
    if choice.random() < 0.8:
        row.amount = choice.choice(NUMBERS)
    if choice.random() < 0.7:
        row.state = choice.choice((0, 1, 2, 9))
    if choice.random() < 0.7:
        row.opened_time.seconds, row.opened_time.nanos = choice.choice(TIMES[:5])
    row.score = choice.choice(FLOATS)
    row.blob = choice.choice((b"", b"a", b"a\x00", b"\xff\xff"))
    for name, value in fields.items():
        setattr(row, name, value)
    return row


class ShelvesServer:
    """A gateway that has the things: `rows` is what they are, by shop and number."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], Any] = {}
        self._store = MemoryStore(history_changes_max=100_000)
        self._table = FilledTable(self._store, shelves().tables["things"], 3)
        self._table.publish()
        self._served: ServerThread | None = None
        self._loop: Any = None
        self._notifier: Any = None

    def __enter__(self) -> "ShelvesServer":
        self._served = ServerThread(self._made)
        self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._served is not None
        self._served.__exit__()

    def _made(self) -> HttpServer:
        self._loop, self._notifier = asyncio.get_running_loop(), Notifier()
        return HttpServer(query_methods(shelves(), self._store, SIGNER, self._notifier), "127.0.0.1:0")

    @property
    def address(self) -> str:
        """Return where it listens."""
        assert self._served is not None
        return f"127.0.0.1:{self._served.port}"

    def put(self, *rows: Any) -> None:
        """Write rows."""
        self.rows.update({(row.shop, row.number): row for row in rows})
        self._do(lambda: self._table.put(rows))

    def delete(self, *rows: Any) -> None:
        """Delete rows."""
        for row in rows:
            self.rows.pop((row.shop, row.number), None)
        self._do(lambda: self._table.delete(rows))

    def rebuild(self, *rows: Any) -> None:
        """Begin another generation, of these rows."""

        def write() -> None:
            self._table.generation += 1
            self._table.publish()
            self._table.put(rows)

        self.rows = {(row.shop, row.number): row for row in rows}
        self._do(write)

    def _do(self, write: Callable[[], None]) -> None:
        async def announce() -> None:
            write()
            self._notifier.notify()

        asyncio.run_coroutine_threadsafe(announce(), self._loop).result()


@contextmanager
def local_things(server: ShelvesServer, directory: Path, **more: Any) -> Iterator[tuple[LocalTable[Any], grpc.Channel]]:
    """Give a local table of the things, and a channel to the gateway."""
    asked = query("SubscribeThings").request_class(subscribe_options=OFTEN)
    with open_channel(server.address) as channel:
        subscribe = stub(channel, "SubscribeThings")
        row = shelves().tables["things"].row_class
        with LocalTable(subscribe, asked, directory, row=row, **more) as table:
            yield table, channel


def stub(channel: Any, name: str) -> Any:
    """Return a method as a generated stub has it."""
    found = query(name)
    is_stream = name in ("SubscribeThings", "ScanThings")
    kind = channel.unary_stream if is_stream else channel.unary_unary
    return kind(
        found.path,
        request_serializer=found.request_class.SerializeToString,
        response_deserializer=found.response_class.FromString,
    )


def request(name: str, **fields: Any) -> Any:
    """Return a request of a method."""
    return query(name).request_class(**fields)


def random_request(choice: random.Random, name: str) -> Any:
    """Return a request in which some fields have some values, right or wrong."""
    asked = query(name).request_class()
    for field in asked.DESCRIPTOR.fields:
        if field.name in ("page_token", "read_options") or choice.random() < 0.5:
            continue
        if field.name == "read_mask":
            asked.read_mask.paths.extend(choice.choices(PATHS[: choice.choice((9, 9, 9, 12))], k=choice.randrange(4)))
        elif field.name == "scan_options":
            asked.scan_options.limit = choice.choice((0, 0, 1, 5, -1))
        elif field.is_repeated:
            for _ in range(choice.choice((0, 1, 3, 25))):
                _add(choice, getattr(asked, field.name), field)
        elif field.message_type is not None:
            seconds, nanos = choice.choice(TIMES)
            getattr(asked, field.name).seconds, getattr(asked, field.name).nanos = seconds, nanos
        else:
            setattr(asked, field.name, _value(choice, field))
    return asked


def _add(choice: random.Random, into: Any, field: FieldDescriptor) -> None:
    if field.message_type is None:
        into.append(_value(choice, field))
    else:
        into.add(shop=choice.choice(TEXTS[:4]), number=choice.choice(NUMBERS))


def _value(choice: random.Random, field: FieldDescriptor) -> Any:
    if field.name == "page_size":
        return choice.choice((0, 1, 2, 5, 100, -1))
    if field.name == "order":
        return choice.choice((0, 1, 2, 2, 9))
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return choice.choice((*TEXTS, "a/1", "/0"))
        case FieldDescriptor.TYPE_BYTES:
            return choice.choice((b"", b"a", b"\xff"))
        case FieldDescriptor.TYPE_DOUBLE:
            return choice.choice(FLOATS)
        case FieldDescriptor.TYPE_ENUM:
            return choice.choice((0, 1, 2, 9))
        case _:
            return choice.choice(NUMBERS)


class Outcome(NamedTuple):
    """What came of a call: its pages, as bytes without what each gateway says in words of its own; or its refusal."""

    pages: tuple[bytes, ...] = ()
    refusal: tuple[str, str, str] = ("", "", "")


def outcome(channel: Any, name: str, asked: Any, pages_max: int = 200) -> Outcome:
    """Ask, and walk to the last page."""
    asked = _copied(asked)
    pages: list[bytes] = []
    try:
        if isinstance(query(name), ScanQuery):
            return Outcome(tuple(_rows(stub(channel, name)(asked), asked.scan_options.limit)))
        while True:
            answer = stub(channel, name)(asked)
            token = getattr(answer, "next_page_token", "")
            pages.append(_without(answer).SerializeToString(deterministic=True))
            if not token:
                return Outcome(tuple(pages))
            assert len(pages) < pages_max, "the walk has no end"
            asked.page_token = token
    except grpc.RpcError as error:
        failure = failure_of(error)
        return Outcome(tuple(pages), (failure.code, failure.reason, failure.text))


def _rows(answers: Any, limit: int) -> list[bytes]:
    """Return the rows of a Scan, which have no order; of those of a limit how many there are."""
    rows = [row.SerializeToString(deterministic=True) for answer in answers for row in answer.things]
    return [b"%d rows" % len(rows)] if limit else sorted(rows)


def _copied(asked: Message) -> Any:
    copied = type(asked)()
    copied.CopyFrom(asked)
    return copied


def _without(answer: Any) -> Any:
    for name in ("read_info", "next_page_token"):
        if name in answer.DESCRIPTOR.fields_by_name:
            answer.ClearField(name)
    return answer
