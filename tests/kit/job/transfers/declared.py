"""The job of the accounts, the source that moves units, and readers that keep a history of what they were answered."""

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from confluent_kafka import Producer

from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.kit.gateway_processes.gateway import GatewayProcess

BANKS = ("first", "second")
ACCOUNTS = range(40)
UNITS = 100
"""Units of each account in the beginning."""
MOVES_PER_TRANSACTION = 10
CONTRACT = Path(__file__).parent / "transfers.proto"
SERVICE = "/tests.transfers.TransfersService"
WAIT_S = 30.0
JOB = """from tablegate.jobs.table import Json, Mode, Source, Table

TABLE = Table(
    name="{name}",
    contract="contract.proto",
    source=Source("{topic}", Json("bank STRING, account BIGINT, amount BIGINT")),
    key={{"bank": "bank", "account": "account"}},
    columns={{"balance": "sum(amount)", "moves": "count(*)"}},
    mode=Mode.MICROBATCH,
    atomic={atomic},
)
"""


def write_job(directory: Path, name: str, topic: str, *, atomic: bool = True) -> tuple[Path, Path]:
    """Declare the accounts under a name of their own; return the declaration and its contract."""
    contract, declaration = directory / "contract.proto", directory / "job.py"
    contract.write_text(CONTRACT.read_text().replace("NAME", name))
    declaration.write_text(JOB.format(name=name, topic=topic, atomic=atomic))
    return declaration, contract


class Bookings:
    """Writes the source: first what is in the accounts, then units that move. What belongs together is one transaction.

    `moves`: how many were committed in each bank, each of which changes two accounts.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.moves = 0
        self._topic = topic
        self._choice = random.Random(1)
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"bookings-{topic}"})
        self._producer.init_transactions(WAIT_S)

    def fill(self) -> None:
        """Put the units into the accounts."""
        self._write((bank, account, UNITS) for bank in BANKS for account in ACCOUNTS)

    def move(self) -> None:
        """Move units, one at a time, in each bank."""
        pairs = [self._choice.sample(ACCOUNTS, 2) for _ in range(MOVES_PER_TRANSACTION)]
        self._write(
            (bank, account, amount)
            for bank in BANKS
            for pair in pairs
            for account, amount in zip(pair, (-1, 1), strict=True)
        )
        self.moves += len(pairs)

    def _write(self, bookings: Iterable[tuple[str, int, int]]) -> None:
        self._producer.begin_transaction()
        for bank, account, amount in bookings:
            value = json.dumps({"bank": bank, "account": account, "amount": amount})
            self._producer.produce(self._topic, value=value.encode(), partition=0)
        self._producer.commit_transaction(WAIT_S)


@contextmanager
def repeated(act: Callable[[], object], pause_s: float = 0.0) -> Iterator[None]:
    """Do something again and again while the block runs; fail at its end if it did."""
    stop = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(pause_s):
                act()
        except Exception as error:  # noqa: BLE001 - it belongs to the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


class Reader:
    """Reads one bank after the other, all its accounts at once, and appends each answer to a history: JSON lines.

    `reads`: how often it was answered. `seen`: how many moves answers had, a number for each batch that was seen.
    """

    def __init__(self, gateway: GatewayProcess, contract: Path, history: Path) -> None:
        catalogue: Catalogue = bind(merge([load_descriptors(contract)]))
        self._get = catalogue.queries[f"{SERVICE}/BatchGetAccounts"]
        self._list = catalogue.queries[f"{SERVICE}/ListAccounts"]
        self._gateway = gateway
        self._history = history.open("a", buffering=1)
        self._turns = itertools.cycle(itertools.product((self.got, self.listed), BANKS))
        self.reads = 0
        self.seen: set[int] = set()

    def close(self) -> None:
        """Close the history."""
        self._history.close()

    def _call(self, query: Any, **fields: Any) -> Any:
        assert self._gateway.channel is not None
        call = self._gateway.channel.unary_unary(query.path, None, query.response_class.FromString)
        return call(query.request_class(**fields).SerializeToString(), timeout=5)

    def got(self, bank: str) -> list[Any]:
        """Return the rows of a bank by BatchGet."""
        results = self._call(self._get, keys=[{"bank": bank, "account": account} for account in ACCOUNTS]).results
        return [result.found for result in results if result.HasField("found")]

    def listed(self, bank: str) -> list[Any]:
        """Return the rows of a bank by Range."""
        return list(self._call(self._list, bank=bank).accounts)

    def read(self) -> None:
        """Read once, and append what was answered."""
        ask, bank = next(self._turns)
        try:
            rows = ask(bank)
        except grpc.RpcError as error:
            answer = {"type": "fail", "code": str(error.code())}
        else:
            units, moves = sum(row.balance for row in rows), sum(row.moves for row in rows)
            self.seen.add(moves)
            self.reads += 1
            answer = {"type": "ok", "query": ask.__name__, "rows": len(rows), "units": units, "moves": moves}
        self._history.write(json.dumps({"bank": bank, **answer}) + "\n")

    def moves(self, bank: str) -> int:
        """Return how many moves of the bank are in its accounts, as far as they can be read."""
        try:
            return (sum(int(row.moves) for row in self.listed(bank)) - len(ACCOUNTS)) // 2
        except grpc.RpcError:
            return -1


def answers_of(history: Path) -> list[dict[str, Any]]:
    """Return the answers of a history."""
    lines = map(json.loads, history.read_text().splitlines())
    return [line for line in lines if line["type"] == "ok"]


def torn(answers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers that no sum of whole batches gives: units were lost or made, or a move is there by half."""
    whole = (len(ACCOUNTS), len(ACCOUNTS) * UNITS)
    return [
        answer
        for answer in answers
        if answer["rows"] and ((answer["rows"], answer["units"]) != whole or answer["moves"] % 2)
    ]
