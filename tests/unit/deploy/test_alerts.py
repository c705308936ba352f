"""Alerts and dashboards: they ask for metrics that there are, and each alert fires when it should, and only then."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.docs.pages import ROOT, anchors

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
REFERENCE = ROOT / "docs/reference/metrics.md"  # generated from the code
RULES: Mapping[str, Any] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}

# Series in promtool's notation, each of a minute: "0x9" is ten times 0, "0+1x9" counts from 0 to 9.
HEALTHY = {
    'tablegate_table_serving{table="t",instance="a"}': "1x60",
    'tablegate_table_serving{table="t",instance="b"}': "0x60",  # it comes later; the other one serves
    'tablegate_table_state{table="t",instance="a",state="serving"}': "1x60",
    'tablegate_table_partitions{table="t",instance="a"}': "2x60",
    'tablegate_partition_phase{table="t",instance="a",partition="0",phase="live"}': "1x60",
    'tablegate_partition_phase{table="t",instance="b",partition="1",phase="live"}': "1x60",
    'tablegate_restores_total{table="t",instance="a"}': "0 2x59",
    'tablegate_partition_as_of_time_seconds{table="t",instance="a",partition="0"}': "0+60x60",
    'tablegate_beat_time_seconds{instance="a"}': "0+60x60",
    'tablegate_kafka_reachable{instance="a"}': "1x60",
    'tablegate_skipped_records{table="t",instance="a"}': "3x60",
    'tablegate_conflicting_records{table="t",instance="a"}': "0x60",
    'tablegate_pending_repairs{table="t",instance="a"}': "0x5 2x10 0x45",
    'tablegate_snapshots_writable{instance="a"}': "1x20 0x10 1x30",
    'tablegate_stream_behind_seconds{instance="a"}': "0x10 0+60x4 0x20 50x25",
    'tablegate_table_fault{table="t",instance="a"}': "0x60",
    'tablegate_refused_calls_total{limit="streams",instance="a"}': "0+6x60",
    'tablegate_call_duration_seconds_count{method="/m",code="OK",instance="a"}': "0+6000x60",
    'tablegate_call_duration_seconds_count{method="/m",code="UNAVAILABLE",instance="a"}': "0+6x60",
    'up{job="gateways",instance="a"}': "1x60",
    'tablegate_job_running{table="t"}': "1x60",
    'tablegate_job_marker_time_seconds{table="t"}': "0+60x60",
    'tablegate_job_source_lag_records{table="t",topic="s"}': "0+100x8 0x52",
    'tablegate_job_dead_letters_total{table="t",kind="JSON"}': "7x60",
    'tablegate_job_restarts_total{table="t",cause="a fault"}': "0x20 1x40",
}
UNHEALTHY = [
    ("TablegateTableNotServed", {'tablegate_table_serving{table="t",instance="a"}': "0x60"}),
    ("TablegateTableRefused", {'tablegate_table_state{table="t",instance="a",state="refused"}': "1x60"}),
    (
        "TablegatePartitionWithoutReplica",
        {'tablegate_partition_phase{table="t",instance="b",partition="1",phase="live"}': "0x60"},
    ),
    (
        "TablegateTableGrowsOld",
        {'tablegate_partition_as_of_time_seconds{table="t",instance="a",partition="0"}': "0x60"},
    ),
    ("TablegateReplicatorHangs", {'tablegate_beat_time_seconds{instance="a"}': "0x60"}),
    ("TablegateKafkaUnreachable", {'tablegate_kafka_reachable{instance="a"}': "0x60"}),
    (
        "TablegateRestoresRepeat",
        {'tablegate_restores_total{table="t",instance="a"}': "0+2x5 10x54"},
    ),
    ("TablegateRecordsSkipped", {'tablegate_skipped_records{table="t",instance="a"}': "0x50 1x10"}),
    ("TablegateConflictingRecords", {'tablegate_conflicting_records{table="t",instance="a"}': "0x50 1x10"}),
    ("TablegatePendingRepairs", {'tablegate_pending_repairs{table="t",instance="a"}': "2x60"}),
    ("TablegateSnapshotsFail", {'tablegate_snapshots_writable{instance="a"}': "0x60"}),
    ("TablegateSubscriberBehind", {'tablegate_stream_behind_seconds{instance="a"}': "0x30 0+60x30"}),
    ("TablegateTableFault", {'tablegate_table_fault{table="t",instance="a"}': "1x60"}),
    ("TablegateRefusalsRise", {'tablegate_refused_calls_total{limit="streams",instance="a"}': "0+600x60"}),
    (
        "TablegateCallsFail",
        {'tablegate_call_duration_seconds_count{method="/m",code="UNAVAILABLE",instance="a"}': "0+600x60"},
    ),
    ("TablegateTargetDown", {'up{job="gateways",instance="a"}': "0x60"}),
    ("TablegateJobStopped", {'tablegate_job_running{table="t"}': "0x60"}),
    ("TablegateJobMarkersOld", {'tablegate_job_marker_time_seconds{table="t"}': "0x60"}),
    ("TablegateJobFallsBehind", {'tablegate_job_source_lag_records{table="t",topic="s"}': "0+100x60"}),
    ("TablegateJobDeadLetters", {'tablegate_job_dead_letters_total{table="t",kind="JSON"}': "7x50 8x10"}),
    ("TablegateJobRestarts", {'tablegate_job_restarts_total{table="t",cause="a fault"}': "0x40 0+1x20"}),
]


def _expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with where it stands."""
    for name, rule in RULES.items():
        yield name, rule["expr"]
    for dashboard in DASHBOARDS:
        content = json.loads(dashboard.read_text())
        for panel in content["panels"]:
            for target in panel["targets"]:
                yield f"{dashboard.name}: {panel['title']}", target["expr"]
        for variable in content["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{dashboard.name}: ${variable['name']}", variable["query"]["query"]


def test_expressions_name_metrics_that_there_are() -> None:
    known = set(re.findall(r"^\| `(tablegate_\w+)` \|", REFERENCE.read_text(), re.MULTILINE))
    histograms = set(re.findall(r"^\| `(tablegate_\w+)` \| histogram", REFERENCE.read_text(), re.MULTILINE))
    known |= {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    for where, expression in _expressions():
        named = set(re.findall(r"\btablegate_\w+", expression))
        assert named <= known, where
        assert named or re.search(r"\bup\b", expression), where
    assert len(DASHBOARDS) == 3


def test_each_alert_has_its_place_in_the_runbook() -> None:
    for name, rule in RULES.items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor in anchors(ROOT / page), name
    assert {name for name, _ in UNHEALTHY} == set(RULES)


def test_each_alert_is_provoked_with_a_real_prometheus() -> None:
    provoked = "".join(path.read_text() for path in (ROOT / "tests/integration").glob("test_alerts*.py"))
    assert {name for name in RULES if f'"{name}"' not in provoked} == set()


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def _fires(directory: Path, series: Mapping[str, str], counts: Mapping[str, int]) -> None:
    """Have promtool say how many alerts of each name fire after an hour."""
    fired = 'count(ALERTS{alertname="%s",alertstate="firing"}) or vector(0)'
    expected = [
        {"expr": fired % name, "eval_time": "59m", "exp_samples": [{"labels": "{}", "value": count}]}
        for name, count in counts.items()
    ]
    series_given = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "1m", "input_series": series_given, "promql_expr_test": expected}]
    file = directory / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.tools
@needs_promtool
def test_nothing_fires_where_all_is_well(tmp_path: Path) -> None:
    _fires(tmp_path, HEALTHY, dict.fromkeys(RULES, 0))


@pytest.mark.tools
@needs_promtool
@pytest.mark.parametrize(("name", "changed"), UNHEALTHY, ids=[name for name, _ in UNHEALTHY])
def test_an_alert_fires_alone(tmp_path: Path, name: str, changed: Mapping[str, str]) -> None:
    _fires(tmp_path, {**HEALTHY, **changed}, {rule: int(rule == name) for rule in RULES})


@pytest.mark.tools
@needs_promtool
def test_expressions_of_dashboards_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, (where, expression) in enumerate(_expressions())
        if "$" not in where and not where.startswith("Tablegate")
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
