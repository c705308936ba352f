"""Manifest against contract."""

from collections.abc import Callable

import pytest

from tablegate.gateway.replication.manifests import follows_on, problem_of
from tablegate.v1 import changelog_pb2, options_pb2
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.replication.replicator import Job, ratings


def set_field(name: str, value: object) -> Callable[[Manifest], None]:
    return lambda manifest: setattr(manifest, name, value)


def rename_key(manifest: Manifest) -> None:
    manifest.key[0].name = "film_id"


def retype_key(manifest: Manifest) -> None:
    manifest.key[0].type = changelog_pb2.KEY_TYPE_STRING


def lengthen_key(manifest: Manifest) -> None:
    manifest.key.add(name="user_id", type=changelog_pb2.KEY_TYPE_INT64)


def change_schema(manifest: Manifest) -> None:
    manifest.value_schemas[1] = manifest.value_schemas[1].replace("rating_count", "votes")


def test_the_jobs_own_manifest_is_good(job: Job) -> None:
    assert problem_of(ratings(), job.manifest()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_field("generation", 0), "has no generation"),
        (set_field("changelog_topic", ""), "names no changelog topic"),
        (set_field("changelog_topic_id", ""), "names no changelog topic"),
        (set_field("partition_count", 0), "has 0 partitions"),
        (set_field("partition_count", 100_000), "has 100000 partitions"),
        (rename_key, "has the key (film_id INT64), the contract (movie_id INT64)"),
        (retype_key, "has the key (movie_id STRING), the contract (movie_id INT64)"),
        (lengthen_key, "has the key (movie_id INT64, user_id INT64), the contract (movie_id INT64)"),
        (set_field("partition_by_count", 0), "partitions by 0 key columns, the contract by 1"),
        (set_field("partitioner", options_pb2.PARTITIONER_CRC32), "partitions with CRC32, the contract with MURMUR2"),
        (set_field("partitioner", 99), "partitions with partitioner 99, the contract with MURMUR2"),
        (set_field("contract_fingerprint", b"1234"), "has the fingerprint 31323334, the contract "),
        (change_schema, 'no value schema has field "rating_count" of the contract'),
        (lambda manifest: manifest.value_schemas.clear(), "has no value schema"),
    ],
)
def test_a_manifest_that_disagrees_is_told_in_a_sentence(
    job: Job, change: Callable[[Manifest], None], words: str
) -> None:
    manifest = job.manifest()
    change(manifest)
    problem = problem_of(ratings(), manifest)
    assert problem is not None
    assert problem.startswith('table "ratings"')
    assert words in problem
    assert "\n" not in problem
    assert problem.count("; ") == 1


def test_what_follows_on(job: Job) -> None:
    manifest = job.manifest()
    later = job.manifest()
    later.value_schemas[2] = "{}"
    assert follows_on(manifest, later)
    for name, value in (("generation", 2), ("changelog_topic", "x"), ("changelog_topic_id", "x")):
        other = job.manifest()
        setattr(other, name, value)
        assert not follows_on(manifest, other)
