"""Java's errors in one line: the cause that a user can act on, out of a chain of exceptions."""

import re
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

_FAILURE = re.compile(r"(?:ProcessorError|JobError): (.+)")
# Where a batch is written by Python, its error is text: Python's stack trace, then Java's if Java was called.
_FROM_PYTHON = "An exception was raised by the Python Proxy"
_CAUSE = re.compile(r"^(?:Caused by: |: |)(?:[\w$]+\.)+([\w$]+: .+)$", re.MULTILINE)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip(" ;") if lines else type(error).__name__


def error_reason(error: BaseException) -> str:
    """Return what is behind an error that came through py4j, in one line."""
    if isinstance(error, Py4JJavaError):
        return thrown_reason(error.java_exception)
    if isinstance(error, CapturedException) and error._origin is not None:
        return thrown_reason(error._origin)
    return first_line(error)


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
    causes = _CAUSE.findall(messages[-1]) if messages[-1].startswith(_FROM_PYTHON) else []
    if causes:
        return str(causes[-1]).strip(" ;")
    lines = messages[-1].strip().splitlines()
    name: str = thrown.getClass().getSimpleName()
    return f"{name}: {lines[0].strip(' ;')}" if lines else name


def failure_in_python(text: str) -> str | None:
    """Return what Python code of a query said when it stopped, out of the error's text; None where it said nothing."""
    found = _FAILURE.search(text)
    return found.group(1).strip() if found is not None else None
