"""What is wrong with a contract: where, what, and what to do."""

from dataclasses import dataclass

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `subject` is a message, enum, method or service, by kind and name; "" for the file."""

    file: str
    subject: str
    field: str
    text: str
    hint: str

    def __str__(self) -> str:
        field = f'field "{self.field}"' if self.field else ""
        place = ", ".join(part for part in (self.subject, field) if part)
        return f"{self.file}: {place}{': ' if place else ''}{self.text}; {self.hint}"


class ContractError(Exception):
    """A contract that cannot be served; `problems` has everything that was found, at least one."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Problems:
    """Collects what is wrong, so that one run shows all of it."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def of_file(self, file: str, text: str, hint: str) -> None:
        """Add a problem of a whole file."""
        self._add(Problem(file, "", "", text, hint))

    def of_message(self, message: Descriptor, text: str, hint: str, *, field: str = "") -> None:
        """Add a problem of a message, or of what it calls its field `field`."""
        self._add(Problem(message.file.name, f"message {_short(message)}", field, text, hint))

    def of_enum(self, enum: EnumDescriptor, text: str, hint: str) -> None:
        """Add a problem of an enum, or of a value in it."""
        self._add(Problem(enum.file.name, f"enum {_short(enum)}", "", text, hint))

    def of_service(self, service: ServiceDescriptor, text: str, hint: str) -> None:
        """Add a problem of a service."""
        self._add(Problem(service.file.name, f"service {_short(service)}", "", text, hint))

    def of_method(self, method: MethodDescriptor, text: str, hint: str, *, message: Descriptor | None = None) -> None:
        """Add a problem of a method, or of the message that it takes or gives."""
        self._add(Problem(method.containing_service.file.name, _subject(method, message), "", text, hint))

    def of_field(self, method: MethodDescriptor, field: FieldDescriptor, text: str, hint: str) -> None:
        """Add a problem of a field that a method takes or gives."""
        message = field.containing_type
        assert message is not None, "fields of requests and responses are no extensions"
        self._add(Problem(message.file.name, _subject(method, message), field.name, text, hint))

    def _add(self, problem: Problem) -> None:
        if problem not in self.found:  # a message that two methods share
            self.found.append(problem)


def _subject(method: MethodDescriptor, message: Descriptor | None) -> str:
    name = f"method {_short(method.containing_service)}.{method.name}"
    return f"{name}, message {_short(message)}" if message is not None else name


def _short(descriptor: Descriptor | EnumDescriptor | ServiceDescriptor) -> str:
    file: FileDescriptor = descriptor.file
    return descriptor.full_name.removeprefix(f"{file.package}.")
