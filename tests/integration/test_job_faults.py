"""Jobs of several tables and outputs on real Kafka: what one fault takes along, and what comes twice."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.types import VERSION_HEADER, make_version
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

CONTRACT = Path("examples/tablegate/examples/contracts/examples/browsers/v1/browsers.proto")
JOB = """from tablegate.jobs import Bytes, Json, Long, Mode, RecordOutput, RowOutput, Source, Table, Text

def table(name, topic, keyed, outputs):
    return Table(
        name=name,
        contract=f"{{name}}.proto",
        source=Source(topic, Json("browser STRING, amount BIGINT"), keyed=keyed),
        key={{"browser": "browser"}},
        columns={{"action_count": "sum(amount)"}},
        outputs=outputs,
        mode=Mode.MICROBATCH,
    )

TABLES = (
    table("{shaky}", "{shaky_source}", True, ()),
    table("{steady}", "{steady_source}", False, (
        RowOutput("{steady}-rows", key=Text("browser"), value=Long("action_count")),
        RecordOutput("{steady}-records", key=Text("browser"), value=Bytes("kafka.value")),
        RecordOutput("{steady}-small", key=Text("browser"), value=Long("amount"), where="amount < 3 OR amount = 5"),
    )),
)
"""
LARGE = 2_000_000


def record(browser: str, amount: int, partition: int = 0) -> NewRecord:
    return NewRecord(None, f'{{"browser": "{browser}", "amount": {amount}}}'.encode(), partition=partition)


def test_a_table_stops_alone_and_outputs_come_once(broker: Broker, tmp_path: Path) -> None:
    names = {"shaky": "shaky", "steady": "steady"}
    names["shaky_source"] = new_topic(broker.bootstrap, 2)
    names["steady_source"] = new_topic(broker.bootstrap, 1, max_message_bytes="4000000")
    (tmp_path / "job.py").write_text(JOB.format(**names))
    for name in ("shaky", "steady"):
        (tmp_path / f"{name}.proto").write_text(
            CONTRACT.read_text().replace('name: "suspicious_browsers"', f'name: "{name}"')
        )
    arguments = ["--table", str(tmp_path / "job.py"), "--bootstrap", broker.bootstrap]
    arguments += ["--checkpoints", str(tmp_path / "checkpoints")]
    produce(broker.bootstrap, names["shaky_source"], [record("a", 1, partition) for partition in (0, 1)])
    produce(broker.bootstrap, names["steady_source"], [record("a", amount) for amount in (1, 2, 3)])
    large = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000})
    large.produce(names["steady_source"], value=b"{" * LARGE)
    assert large.flush(20) == 0

    def rows() -> list[tuple[bytes | None, bytes | None]]:
        return [one[2:4] for one in consume(broker.bootstrap, "steady-rows")]

    with JobProcess(tmp_path / "logs", *arguments) as running:
        wait_until("failure of one table", lambda: bool(running.events("failed")), running)
        (failed,) = running.events("failed")
        assert failed["table"] == "shaky"
        assert "is declared keyed, but records of one key are in several partitions" in failed["reason"]
        wait_until("dead letter", lambda: bool(consume(broker.bootstrap, "steady-dead-letters")), running)
        wait_until("first rows", lambda: rows()[-1:] == [(b"a", (6).to_bytes(8, "big"))], running)
        produce(broker.bootstrap, names["steady_source"], [record("a", 4)])
        wait_until("row of the other table", lambda: rows()[-1:] == [(b"a", (10).to_bytes(8, "big"))], running)
        wait_until("records", lambda: len(consume(broker.bootstrap, "steady-records")) == 4, running)
        assert running.stop() == 1
        assert 'error: table "shaky" has stopped: ' in running.errors()
    (letter,) = consume(broker.bootstrap, "steady-dead-letters")
    assert letter.value == b"{" * (768 * 1024)
    assert dict(letter.headers)["value_bytes"] == str(LARGE).encode()
    newest = consume(broker.bootstrap, "steady-rows")[-1]
    assert dict(newest.headers) == {VERSION_HEADER: make_version(1, 4)}

    # A batch whose commit was lost runs again.
    commits = (tmp_path / "checkpoints" / "steady" / "outputs").rglob("commits/*")
    newest_commit = max((path for path in commits if path.name.isdecimal()), key=lambda path: int(path.name))
    newest_commit.unlink()
    newest_commit.with_name(f".{newest_commit.name}.crc").unlink(missing_ok=True)
    produce(broker.bootstrap, names["steady_source"], [record("b", 5)])
    with JobProcess(tmp_path / "logs", *arguments) as running:
        wait_until("the last record", lambda: (b"b", (5).to_bytes(8, "big")) in rows(), running)
        for topic in ("steady-records", "steady-small"):
            wait_until(
                "the last record, passed on",
                lambda topic=topic: consume(broker.bootstrap, topic)[-1].key == b"b",
                running,
            )
    passed = [one.value for one in consume(broker.bootstrap, "steady-records")]
    assert passed == [
        one.value for one in consume(broker.bootstrap, names["steady_source"]) if len(one.value or b"") < LARGE
    ]
    small = [one[2:4] for one in consume(broker.bootstrap, "steady-small")]
    assert small == [(b"a", (1).to_bytes(8, "big")), (b"a", (2).to_bytes(8, "big")), (b"b", (5).to_bytes(8, "big"))]
    # Both outputs are of one query.
    assert len([*(tmp_path / "checkpoints" / "steady" / "outputs").glob("records-*")]) == 1
