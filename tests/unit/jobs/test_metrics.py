"""The metrics of jobs: where they are served, and how they are named."""

import shutil
import socket
import subprocess
import urllib.request

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tablegate.examples.demo.kafka import free_port
from tablegate.jobs import metrics
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.queries import LagTimes

UNITS = (
    "_seconds",
    "_bytes",
    "_rows",
    "_records",
    "_letters",
    "_changes",
    "_restarts",
    "_running",
    "_generation",
    "_spans",
)


def test_metrics_are_served_while_the_block_runs() -> None:
    address = f"127.0.0.1:{free_port()}"
    with metrics.served(address):
        metrics.RECORDS.labels("some").inc(3)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    [family] = [one for one in text_string_to_metric_families(text) if one.name == "tablegate_job_records"]
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("tablegate_job_records_total", {"table": "some"}, 3.0)
    ]
    with socket.socket() as freed:
        assert freed.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


def test_nothing_is_served_where_nothing_is_asked() -> None:
    with metrics.served(None):
        pass


@pytest.mark.parametrize("address", ["9464", ":9464", "localhost:", "localhost:99999", "localhost:http"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(JobError, match="is no address; give HOST:PORT"), metrics.served(address):
        pass


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        refused = pytest.raises(JobError, match=f'cannot listen on "{address}": Address already in use')
        with refused, metrics.served(address):
            pass


def test_a_host_that_can_be_no_name_is_refused() -> None:
    with pytest.raises(JobError, match=r'cannot listen on "a\.\.b:9464"'), metrics.served("a..b:9464"):
        pass


def test_names_follow_the_conventions_of_prometheus() -> None:
    families = [family for family in REGISTRY.collect() if family.name.startswith("tablegate_job_")]
    assert len(families) >= 14
    for family in families:
        assert family.documentation.endswith(".")
        assert family.name.endswith(UNITS), family.name


@pytest.mark.tools
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_metrics_follow_the_rules_of_promtool() -> None:
    metrics.LAG.labels("a table", "a topic").set(1)
    text = generate_latest(REGISTRY)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, (done.stdout + done.stderr).decode()) == (0, "")


def lags(times: LagTimes, *observed: tuple[float, dict[int, int], dict[int, int]]) -> list[float]:
    """Return what is found at each moment: its time, the ends of the topic, and the next offsets that are read."""
    return [times.lag_s("orders", ends=ends, read=read, now_s=now_s) for now_s, ends, read in observed]


def test_lag_in_seconds_is_since_all_that_was_there_was_read() -> None:
    observed = [
        (100.0, {0: 10, 1: 10}, {0: 10, 1: 10}),  # nothing is unread
        (105.0, {0: 50, 1: 10}, {0: 10, 1: 10}),
        (110.0, {0: 90, 1: 10}, {0: 30, 1: 10}),  # some of what came by 105
        (115.0, {0: 90, 1: 20}, {0: 50, 1: 10}),  # all of it
        (120.0, {0: 90, 1: 20}, {0: 90, 1: 10}),  # one partition waits
        (125.0, {0: 90, 1: 20}, {0: 90, 1: 20}),
    ]
    assert lags(LagTimes(), *observed) == [0, 5, 10, 10, 10, 0]


def test_what_a_late_table_remembers_is_bounded() -> None:
    times = LagTimes(seen_max=8)
    behind = [(float(now_s), {0: 100 + now_s}, {0: 0}) for now_s in range(1_000)]
    assert lags(times, *behind)[-1] == 999
    assert len(times._seen["orders"]) <= 8
    # It is not exact any more, and never says less than it is.
    assert 999 - 500 <= lags(times, (999.0, {0: 1_099}, {0: 600}))[0] <= 999
