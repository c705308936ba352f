"""Settings of Spark that a user gives: what is taken, and what is refused."""

import inspect
import signal
from pathlib import Path

import pyspark.core.context
import pytest
from pyspark import SparkContext

from tablegate.jobs.arguments import spark_conf
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.session import SETTINGS, own_interrupts, spark_session


def test_settings_are_names_and_values() -> None:
    given = ["spark.ui.enabled=true", "spark.driver.extraJavaOptions=-Da=b -Dc=d"]
    assert spark_conf(given) == {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Da=b -Dc=d"}
    assert spark_conf(None) == {}


@pytest.mark.parametrize("text", ["spark.ui.enabled", "ui.enabled=true", "=true", ""])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(JobError, match=f'--conf "{text}" is no setting of Spark; give NAME=VALUE'):
        spark_conf([text])


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("spark.master", "say it with --master"),
        ("spark.sql.shuffle.partitions", "see --partitions"),
        *((setting, "leave it out") for setting in SETTINGS),
    ],
)
def test_settings_that_jobs_count_on_are_refused_before_the_start(setting: str, hint: str, tmp_path: Path) -> None:
    started = spark_session(
        "refused", master="local[1]", checkpoints=str(tmp_path), spark_log=None, conf={setting: "other"}
    )
    with pytest.raises(JobError, match=f"--conf {setting} is not the user's to set: .*{hint}"), started:
        pass


def test_a_setting_behind_a_submitted_script_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    started = spark_session(
        "refused", master=None, checkpoints=str(tmp_path), spark_log=None, conf={"spark.ui.enabled": "true"}
    )
    with pytest.raises(JobError, match="is of spark-submit; give it before the script"), started:
        pass


def test_ctrl_c_is_the_jobs_while_spark_starts() -> None:
    assert "signal.signal(signal.SIGINT, signal_handler)" in inspect.getsource(SparkContext._do_init)
    module = vars(pyspark.core.context)

    def of_job(*_: object) -> None: ...

    def of_spark(*_: object) -> None: ...

    before = signal.signal(signal.SIGINT, of_job)
    try:
        with own_interrupts():
            module["signal"].signal(signal.SIGINT, of_spark)
        assert signal.getsignal(signal.SIGINT) is of_job
        assert module["signal"] is signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with own_interrupts():
            module["signal"].signal(signal.SIGINT, of_spark)
        assert signal.getsignal(signal.SIGINT) is of_spark
    finally:
        signal.signal(signal.SIGINT, before)
