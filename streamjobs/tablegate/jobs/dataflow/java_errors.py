"""Java's errors in one line: the cause that a user can act on, out of a chain of exceptions."""

import re
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

_FAILURE = re.compile(r"(?:ProcessorError|JobError): (.+)")
_SUGGESTIONS = re.compile(r" Did you mean one of the following\? \[(.*?)\]\.")
# Where a batch is written by Python, its error is text: Python's stack trace, then Java's if Java was called.
_FROM_PYTHON = "An exception was raised by the Python Proxy"
_CAUSE = re.compile(r"^(?:Caused by: |: |)(?:[\w$]+\.)+([\w$]+: .+)$", re.MULTILINE)
# What stops a query cancels its jobs, and interrupts its batch, wherever that is: either may come first.
_INTERRUPTED = re.compile(
    r"(?:InterruptedException|InterruptedIOException|ClosedByInterruptException)\b"
    r"|SparkException: \[SPARK_JOB_CANCELLED\]"
)
KAFKA_AWAY = ("TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException")
"""Errors of Kafka's Java clients, as reasons begin with them, where brokers do not answer, or a topic has gone."""
NO_SPACE = "No space left on device"
_RAISED_IN_QUERY = re.compile(r"^\w+: \[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$")
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_RAISED = re.compile(r"^(?P<raised>[A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return _without_own_names(lines[0].strip(" ;")) if lines else type(error).__name__


def _without_own_names(text: str) -> str:
    """Return an error without the job's own columns among the names that Spark suggests."""

    def others(matched: re.Match[str]) -> str:
        names = [name for name in matched.group(1).split(", ") if not name.startswith("`__")]
        return f" Did you mean one of the following? [{', '.join(names)}]." if names else ""

    return _SUGGESTIONS.sub(others, text)


def error_reason(error: BaseException) -> str:
    """Return what is behind an error that came through py4j, in one line."""
    if isinstance(error, Py4JJavaError):
        return thrown_reason(error.java_exception)
    if isinstance(error, CapturedException) and error._origin is not None:
        return thrown_reason(error._origin)
    return first_line(error)


def is_interrupted(error: BaseException) -> bool:
    """Return whether Spark has broken off what raised this, as it does where a query is stopped."""
    return isinstance(error, Py4JJavaError) and _INTERRUPTED.match(error_reason(error)) is not None


def thrown_reason(thrown: Any) -> str:
    """Return what is behind a Java exception, in one line: what Python code said, else the innermost exception."""
    messages = [str(thrown.getMessage() or "")]
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
        messages.append(str(thrown.getMessage() or ""))
    for message in messages:
        failure = failure_in_python(message)
        if failure is not None:
            return failure
    for message in messages:
        raised = raised_in_function(message)
        if raised is not None:
            return raised
    causes = _CAUSE.findall(messages[-1]) if messages[-1].startswith(_FROM_PYTHON) else []
    if causes:
        return raised_in_query(str(causes[-1]).strip(" ;"))
    lines = messages[-1].strip().splitlines()
    name: str = thrown.getClass().getSimpleName()
    return raised_in_query(f"{name}: {lines[0].strip(' ;')}") if lines else name


def raised_in_query(reason: str) -> str:
    """Return what an expression of a query has raised, without what Spark writes around it; another reason as it is."""
    return _RAISED_IN_QUERY.sub(r"\1", reason)


def raised_in_function(text: str) -> str | None:
    """Return what a Python worker raised, with the line of the user's function that did; None where none raised."""
    if "PYTHON_EXCEPTION" not in text and "thrown from the Python worker" not in text:
        return None
    _, _, trace = text.partition("Traceback (most recent call last):")
    raised = _RAISED.search(trace)
    if raised is None:
        return None
    own = [frame for frame in _FRAME.finditer(trace) if not re.search(r"/pyspark/|/py4j/|<", frame["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}: {raised['raised']}" if own else raised["raised"]


def failure_in_python(text: str) -> str | None:
    """Return what Python code of a query said when it stopped, out of the error's text; None where it said nothing."""
    found = _FAILURE.search(text)
    return found.group(1).strip() if found is not None else None
