"""Settings for all tests."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.kit.crashes",
    "tests.kit.programs.apicurio",
    "tests.kit.programs.kafka",
    "tests.kit.programs.kafka_streams",
    "tests.kit.programs.redis",
]

# Machines are noisy: no test fails for being slow. What hypothesis finds on one machine it finds on the next.
settings.register_profile("tablegate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("check", settings.get_profile("tablegate"), max_examples=20)  # `make check`: a first look
settings.load_profile("tablegate")

# Spark compiles more code than a test runs: its quick compiler alone saves a fifth of the time. One that is set wins.
# What it makes lives for a moment: a large young generation is looked through half as often.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xms512m -Xmn256m",
)

# Started in the background, tests ignore Ctrl-C, and the processes that they start would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write into the files of tests/unit/scenarios what they print now: look at the diff",
    )
    parser.addoption(
        "--rewrite-contracts",
        action="store_true",
        help="write into the files of tests/unit/cli/contracts what is generated now: look at the diff",
    )
    parser.addoption(
        "--rewrite-pictures",
        action="store_true",
        help="draw the pictures of the console in docs/images anew: look at them",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the archives of Java's classes before the first test that may start Spark or a broker."""
    if any(item.get_closest_marker("jvm") for item in session.items):
        from tests.kit.programs.class_archives import write_archives  # imports PySpark, which others do without

        write_archives()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Set aside what all tests have in common: it stays, and a tenth of their time went into looking at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
