"""`tablegate job list`: which tables it shows, and how it prints them into a pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.kafka.published import PublishedManifests
from tablegate.jobs.kafka.manifests import read_manifests
from tablegate.jobs.planning.declarations import example_names
from tablegate.v1.changelog_pb2 import Manifest, SourceTopic
from tests.kit.job.ratings_job import write_job
from tests.kit.programs.kafka import new_topic

pytestmark = pytest.mark.jvm

LONG = "a-source-whose-name-is-much-longer-than-the-terminals-are-wide-in-which-people-read-such-a-list"


@pytest.fixture(scope="module")
def listed(broker: Broker) -> Iterator[str]:
    """A table that some job has published, by name."""
    name = "listed_by_somebody"
    sources = [SourceTopic(topic=f"{LONG}-{number}", partition_count=1) for number in range(3)]
    changelog = new_topic(broker.bootstrap, 1, prefix=name)
    published = PublishedManifests(broker.bootstrap, {}, "tables")
    published.publish(Manifest(table=name, generation=1, changelog_topic=changelog, sources=sources))
    yield name
    published.remove(name, newest=1)
    published.close()


def job_list(broker: Broker, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command with a pipe for its output, as scripts have it."""
    command = [sys.executable, "-m", "tablegate.gateway.cli", "job", "list", *words, "--bootstrap", broker.bootstrap]
    environment = {**os.environ, "COLUMNS": "60"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_tables_of_jobs_are_listed_and_no_examples(broker: Broker, listed: str) -> None:
    names = {json.loads(line)["table"] for line in job_list(broker, "--json").stdout.splitlines()}
    published = read_manifests(broker.bootstrap)
    assert listed in names
    assert names == {name for name, manifest in published.items() if not manifest.HasField("foreign")}


def test_a_pipe_gets_a_line_for_each_table_with_nothing_cut(broker: Broker, listed: str) -> None:
    head, *lines = job_list(broker).stdout.splitlines()
    assert head.split() == ["table", "job", "gen", "mode", "behind", "marker", "sources"]
    [line] = [line for line in lines if LONG in line]
    assert line.split()[0] == listed
    assert line.rstrip().endswith(f"{LONG}-0, {LONG}-1, {LONG}-2")


def test_a_declaration_is_listed_that_no_job_has_run(broker: Broker, listed: str, tmp_path: Path) -> None:
    file = write_job(tmp_path, "never_run", "its-source")
    [line] = job_list(broker, file, "--json").stdout.splitlines()
    assert json.loads(line) == {
        "table": "never_run",
        "generation": None,
        "mode": None,
        "partitions": None,
        "sources": ["its-source"],
        "running": False,
        "rebuilding": None,
        "records_behind": None,
        "marker_age_s": None,
    }
    named = {line.split()[0] for line in job_list(broker, "--all").stdout.splitlines()[1:]}
    assert named == {*example_names()}
    assert listed not in named
