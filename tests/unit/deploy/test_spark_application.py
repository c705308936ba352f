"""The job on the Spark operator, without a cluster: by the operator's own schema, and against the image it names."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

from tests.kit.programs.deployment import DEPLOY, ROOT, job_arguments

APPLICATION: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "spark-application.yaml").read_text())
SPEC = APPLICATION["spec"]
SCHEMA = json.loads((Path(__file__).with_name("schemas") / "spark-application-2.5.2.json").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
DIRECTORY = "/var/lib/tablegate/"


def test_schema() -> None:
    assert [f"{error.json_path}: {error.message}" for error in Draft7Validator(SCHEMA).iter_errors(APPLICATION)] == []


def test_schema_refuses_what_is_misspelt() -> None:
    for where in ("spec", "driver", "executor"):
        wrong = json.loads(json.dumps(APPLICATION))
        (wrong["spec"] if where == "spec" else wrong["spec"][where])["memroy"] = "1g"
        assert list(Draft7Validator(SCHEMA).iter_errors(wrong)), where


def test_its_arguments_are_those_of_a_job() -> None:
    arguments = job_arguments(SPEC["arguments"])
    volumes = {volume["name"] for volume in SPEC["volumes"]}
    for part in ("driver", "executor"):
        mounts = {mount["mountPath"]: mount["name"] for mount in SPEC[part]["volumeMounts"]}
        assert set(mounts.values()) == volumes, part
        assert str(Path(arguments["table"][0]).parent) in mounts, part
        assert arguments["checkpoints"] in mounts, part
    port = arguments["metrics"].rpartition(":")[2]
    assert SPEC["driver"]["annotations"]["prometheus.io/port"] == port


def test_what_it_names_is_in_the_image() -> None:
    script = re.fullmatch(r"local:///opt/job/lib/python3\.11/site-packages/(.+)", SPEC["mainApplicationFile"])
    assert script is not None
    assert (ROOT / "streamjobs" / script[1]).is_file()
    lock = (ROOT / "requirements.lock").read_text()
    assert f"pyspark=={SPEC['sparkVersion']} " in lock
    for part in ("driver", "executor"):
        assert SPEC["sparkConf"][f"spark.{part}.extraClassPath"] == "/opt/tablegate/jars/spark/*"
        account = SPEC[part]["securityContext"]
        assert f"USER {account['runAsUser']}:{account['runAsGroup']}\n" in DOCKERFILE
    assert "TABLEGATE_CACHE=/opt/tablegate\n" in DOCKERFILE
    assert "COPY deploy/spark /etc/spark\n" in DOCKERFILE
    assert 'ENTRYPOINT ["/etc/spark/entrypoint.sh"]\n' in DOCKERFILE
    assert (DEPLOY / "spark" / "entrypoint.sh").stat().st_mode & 0o111 == 0o111
