"""The log, as a machine and as a person read it."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablegate.gateway.server.logs import JsonFormatter, TerminalFormatter, set_up_logging


@pytest.fixture(autouse=True)
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_json_with_what_the_record_adds(tmp_path: Path) -> None:
    set_up_logging("worker-1", tmp_path / "log")
    logging.getLogger("tablegate.gateway.server").warning(
        "not all is served", extra={"missing": ["ratings"], "path": tmp_path}
    )
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        logging.getLogger("tablegate.gateway.server").exception("failed")
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert first["time"].endswith("Z")
    del first["time"]
    assert first == {
        "level": "warning",
        "process": "worker-1",
        "logger": "tablegate.gateway.server",
        "message": "not all is served",
        "missing": ["ratings"],
        "path": str(tmp_path),
    }
    assert "two" in second["exception"]


def test_a_terminal_gets_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    set_up_logging("gateway")
    [handler] = logging.getLogger().handlers
    assert isinstance(handler.formatter, TerminalFormatter)
    record = logging.LogRecord("x", logging.WARNING, "", 0, "restoring %s", ("ratings",), None)
    record.rows = 5
    line = handler.formatter.format(record)
    assert "gateway    restoring ratings" in line
    assert "rows=5" in line
    set_up_logging("gateway", None)


def test_a_pipe_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    set_up_logging("gateway")
    assert isinstance(logging.getLogger().handlers[0].formatter, JsonFormatter)
