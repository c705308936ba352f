"""`tablegate job diff`: a declaration against the one that a table's rows were computed by.

The job keeps that one in the checkpoint of its generation. Where this is on the machine, no Spark is needed to read it.

Decision: docs/decisions/0097-a-generation-begins-from-the-state.md
"""

from dataclasses import replace
from pathlib import Path

from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.planning.changes import DeclarationChange, PartChange, declaration_change
from tablegate.jobs.planning.declarations import load_contract
from tablegate.jobs.running.checkpoint import IDENTITY_FILE, Checkpoint, Identity, check_owner, read_identity
from tablegate.jobs.running.operations import local_directory
from tablegate.jobs.running.session import spark_session


def needs_spark(checkpoints: str) -> bool:
    """Return whether checkpoints are where only Spark can read."""
    return local_directory(checkpoints) is None


def diff_job(table: Declared, *, bootstrap: str, checkpoints: str, spark_log: Path | None) -> DeclarationChange:
    """Return how a declaration differs from what is served; raise `JobError` where nothing tells that."""
    contract = load_contract(table)
    manifest = read_manifest(bootstrap, table.name)
    if manifest is None:
        raise JobError(f'table "{table.name}" has no manifest at {bootstrap}; tablegate job list shows the tables')
    location = f"{checkpoints.rstrip('/')}/{table.name}/g{manifest.generation}"
    kept = _owner(location, checkpoints, spark_log)
    owner = check_owner(kept, location, manifest, manifest.changelog_topic_id, bootstrap)
    found = declaration_change(table, owner.logic, manifest.generation)
    # What a job compares with the manifest when it starts.
    if manifest.contract_fingerprint != contract.fingerprint:
        others = PartChange(part="the contract's key, windows or partitioning", before="as they were", now="others")
        found = replace(found, parts=(*found.parts, others))
    if manifest.atomic != table.atomic:
        atomic = PartChange(part="atomic", before=str(manifest.atomic), now=str(table.atomic))
        found = replace(found, parts=(*found.parts, atomic))
    return found


def _owner(location: str, checkpoints: str, spark_log: Path | None) -> Identity | None:
    directory = local_directory(location)
    if directory is None:
        with spark_session("tablegate diff", master="local[1]", checkpoints=checkpoints, spark_log=spark_log) as spark:
            return Checkpoint(spark, location).owner()
    try:
        return read_identity((directory / IDENTITY_FILE).read_text(), location)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JobError(f'checkpoint "{location}" cannot be used: {error.strerror}') from None
