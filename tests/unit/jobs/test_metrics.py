"""The metrics of jobs: where they are served, and how they are named."""

import socket
import urllib.request

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from tablegate.examples.demo.kafka import free_port
from tablegate.jobs import metrics
from tablegate.jobs.errors import JobError

UNITS = ("_seconds", "_bytes", "_rows", "_records", "_letters", "_changes", "_restarts", "_running", "_generation")


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
