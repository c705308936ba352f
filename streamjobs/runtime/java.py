"""What went wrong in Java, told in a line."""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException


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
    """Return the class and the message of the innermost exception of a Java one."""
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    message = str(thrown.getMessage() or "").strip().splitlines()
    name: str = thrown.getClass().getSimpleName()
    return f"{name}: {message[0].strip(' ;')}" if message else name
