"""Files of certificates that change while a gateway runs: no client ends for one that is half written just now."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tablegate.examples.demo.kafka import HOST, free_port
from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.client import KafkaEnds, KafkaLog
from tablegate.gateway.kafka.log import LogUnavailable, TopicPartition
from tests.kit.http.certificates import Authority, Pair

ASKED = 3


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Authority(tmp_path).issue("gateway")


def ssl_options(pair: Pair) -> dict[str, str]:
    return {
        "security.protocol": "ssl",
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }


def half_written(file: Path) -> None:
    text = file.read_text()
    file.write_text(text[: len(text) // 2])


@pytest.mark.parametrize("damage", [half_written, Path.unlink, lambda file: file.write_text("")])
@pytest.mark.parametrize("which", ["key", "certificate"])
def test_a_client_goes_on_with_what_it_has(
    pair: Pair, which: str, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It replaces its clients where brokers do not answer, and there is none to replace them with."""
    bootstrap = f"{HOST}:{free_port()}"
    with closing(KafkaLog(bootstrap, ssl_options(pair), request_timeout_s=0.1, renew_s=0.0)) as log:
        log.follow(TopicPartition("theirs", Partition(0)), Place(Offset(0)))
        damage(getattr(pair, which))
        for _ in range(ASKED):
            with pytest.raises(LogUnavailable):
                log.describe_topic("theirs").result(20)
            log.append("gateways", b"key", b"value")
            assert log.fetch(records_max=1, timeout_s=0.0) == []
        with pytest.raises(LogUnavailable):
            KafkaEnds(bootstrap, ssl_options(pair)).end_offsets("theirs")
    assert "the Kafka client refuses its options" in caplog.text
    assert "correct the file of --kafka" in caplog.text


def test_a_client_that_is_new_refuses_a_half_written_key(pair: Pair) -> None:
    half_written(pair.key)
    with pytest.raises(LogUnavailable, match=r"refuses its options.*; correct the file of --kafka"):
        KafkaLog(f"{HOST}:{free_port()}", ssl_options(pair))
