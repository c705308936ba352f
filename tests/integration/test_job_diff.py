"""`tablegate job diff` on a real Kafka, with what a job keeps of its declaration; no Spark starts."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.kafka.manifests import publish_manifest
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import make_plan
from tablegate.jobs.running.checkpoint import IDENTITY_FILE
from tablegate.jobs.running.running_table import identity_of
from tests.kit.command_line import COMMAND
from tests.kit.job.counting_job import write_job
from tests.kit.programs.kafka import new_topic

pytestmark = pytest.mark.jvm

COLUMNS = {"order_count": "count(*)", "amount": "sum(amount)"}


def test_declaration_against_what_is_kept(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "differing", topic, columns=COLUMNS)
    arguments = ["job", "diff", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]

    def diff(*words: str) -> Result:
        return CliRunner().invoke(COMMAND, [*arguments, *words], env={"COLUMNS": "200"})

    never = diff()
    assert (never.exit_code, "has no manifest" in never.output) == (1, True)
    plan = make_plan(load_table(job), Options(bootstrap=broker.bootstrap, checkpoints=str(tmp_path / "checkpoints")))
    publish_manifest(broker.bootstrap, plan.manifest)
    missing = diff()
    assert (missing.exit_code, "give the --checkpoints of its job" in missing.output) == (1, True)

    kept = Path(plan.checkpoint, IDENTITY_FILE)
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(asdict(identity_of(plan, None))))
    same = diff()
    assert (same.exit_code, same.stdout) == (0, "table differing: as generation 1 was computed\n")

    write_job(tmp_path, "differing", topic, columns={"order_count": "count(*) + 1", "amount": "sum(amount * 2)"})
    changed = diff()
    assert changed.exit_code == 3, changed.output
    assert [line.rstrip() for line in changed.stdout.splitlines()] == [
        "table differing, compared with generation 1",
        "column                           history, with --from-state",
        "customer     unchanged           kept",
        "order_count  expression changed  kept",
        "amount       expression changed  not kept: the state has no sum(amount * 2), as no column was made of it",
        'column "order_count":',
        "  was count(*)",
        "  is  count(*)+ 1",
        'column "amount":',
        "  was sum(amount)",
        "  is  sum(amount * 2)",
    ]
    write_job(tmp_path, "differing", topic, columns=COLUMNS, more="mode=Mode.MICROBATCH, atomic=True")
    contract = tmp_path / "orders.proto"
    contract.write_text(contract.read_text().replace("string customer", "bytes customer"))
    found = json.loads(diff("--json").stdout)
    assert found["others"] == [
        {"part": "the contract's key, windows or partitioning", "before": "as they were", "now": "others"},
        {"part": "atomic", "before": "False", "now": "True"},
    ]
    assert (found["changed"], found["from_state"]) == (True, False)
    assert found["why_not"].startswith("its rows would come at once")

    write_job(tmp_path, "differing", topic, columns={"order_count": "count(*) + 1", "amount": "sum(amount * 2)"})
    found = json.loads(diff("--json").stdout)
    assert (found["changed"], found["from_state"], found["others"]) == (True, True, [])
    assert {one["name"]: (one["change"], one["kept"]) for one in found["columns"]} == {
        "customer": ("unchanged", True),
        "order_count": ("expression_changed", True),
        "amount": ("expression_changed", False),
    }
