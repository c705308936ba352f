"""Settings of Spark that a user gives: what is taken, and what is refused."""

import inspect
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyspark.core.context
import pytest
from py4j import java_gateway
from py4j.clientserver import ClientServerConnection, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty
from pyspark import SparkContext

from tablegate.jobs.arguments import spark_conf
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.session import SETTINGS, Interrupts, spark_session


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


def _spark_sets_a_handler() -> None:
    """Do what a context of PySpark's does."""
    vars(pyspark.core.context)["signal"].signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def sigint() -> Iterator[Callable[[Any], object]]:
    """Set who handles Ctrl-C, until the end of the test."""
    before = signal.getsignal(signal.SIGINT)
    yield partial(signal.signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stays_the_jobs(sigint: Callable[[Any], object]) -> None:
    assert "signal.signal(signal.SIGINT, signal_handler)" in inspect.getsource(SparkContext._do_init)
    came: list[int] = []
    sigint(lambda number, _: came.append(number))
    with Interrupts() as interrupts:
        _spark_sets_a_handler()
        signal.raise_signal(signal.SIGINT)
        interrupts.let_in()
        signal.raise_signal(signal.SIGINT)
    assert came == [signal.SIGINT] * 2
    assert vars(pyspark.core.context)["signal"] is signal


def test_ctrl_c_waits_until_spark_has_started(sigint: Callable[[Any], object]) -> None:
    sigint(signal.default_int_handler)
    has_waited = False

    def start(*, twice: bool) -> None:
        nonlocal has_waited
        with Interrupts() as interrupts:
            _spark_sets_a_handler()
            signal.raise_signal(signal.SIGINT)
            has_waited = True
            if twice:
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("the second one waits, too")
            interrupts.let_in()

    for twice in (False, True):
        has_waited = False
        with pytest.raises(KeyboardInterrupt):
            start(twice=twice)
        assert has_waited
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_ctrl_c_broke_off_is_no_other_failure(
    sigint: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    sigint(signal.default_int_handler)
    ours, javas = socket.socketpair()
    connection = ClientServerConnection(JavaParameters(), PythonParameters(), GatewayProperty(None, None), None)
    connection.init_socket_from_python_server(ours, ours.makefile("rb"))
    javas.close()  # before us

    def call() -> None:
        with Interrupts() as interrupts:
            interrupts.let_in()
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                logging.exception("KeyboardInterrupt while sending command.")
                connection.shutdown_socket(1, 2)
                raise JobError("Java's answer is empty")

    assert 'logging.exception("KeyboardInterrupt while sending command.")' in inspect.getsource(java_gateway)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not caplog.records
