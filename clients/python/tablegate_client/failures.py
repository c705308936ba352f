"""What a status says: its code, the gateway's reason, when to come again."""

from dataclasses import dataclass
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.message import DecodeError

DOMAIN = "tablegate"
DETAILS_TRAILER = "grpc-status-details-bin"
PASSING_CODES = frozenset({"UNAVAILABLE", "CANCELLED"})
PASSING_REASONS = frozenset({"OVERLOADED", "SLOW_SUBSCRIBER"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call ended. `code` is the name of its status; `reason` the gateway's, "" where something else speaks."""

    code: str
    text: str
    reason: str = ""
    retry_after_s: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether the same call may do better later."""
        return self.code in PASSING_CODES or self.reason in PASSING_REASONS


class SubscribeError(Exception):
    """The gateway refuses the subscription, and would again: the message says why.

    `code` is the name of the gRPC status, `reason` the gateway's ErrorReason without its prefix, or "".
    """

    def __init__(self, failure: Failure, advice: str = "") -> None:
        name = f"{failure.code} ({failure.reason})" if failure.reason else failure.code
        super().__init__(f"{name}: {failure.text}{advice}")
        self.code = failure.code
        self.reason = failure.reason


class ResumeTokenRefused(SubscribeError):
    """The resume token is damaged, or of another request: drop the copy that it belongs to, and start without it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure, "; drop your copy and the stored token, or subscribe with restart=True")


def failure_of(error: Any) -> Failure:
    """Return what an RpcError says that is a call too, as those of ended calls are."""
    code = error.code().name
    text = error.details() or "no details"
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS_TRAILER:
            return _detailed(code, text, value)
    return Failure(code, text)


def _detailed(code: str, text: str, data: bytes) -> Failure:
    reason, retry_after_s = "", 0.0
    try:
        for detail in _STATUS.FromString(data).details:
            type_name = detail.type_url.rpartition("/")[2]
            if type_name == "google.rpc.ErrorInfo":
                info = _ERROR_INFO.FromString(detail.value)
                reason = info.reason if info.domain == DOMAIN else ""
            elif type_name == "google.rpc.RetryInfo":
                retry_after_s = _RETRY_INFO.FromString(detail.value).retry_delay.ToTimedelta().total_seconds()
    except DecodeError:  # of something between the gateway and here
        return Failure(code, text)
    return Failure(code, text, reason, max(0.0, retry_after_s))


def _message_classes() -> tuple[Any, Any, Any]:
    """Return Status, ErrorInfo and RetryInfo of google.rpc, with the fields that are read here.

    They are in a pool of their own: an application may have the whole of them in the default one.
    """
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="google/rpc/details.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=["google/protobuf/any.proto", "google/protobuf/duration.proto"],
    )

    def add(message: str, *fields: tuple[str, int, str]) -> None:
        described = file.message_type.add(name=message)
        for name, number, type_name in fields:
            described.field.add(
                name=name,
                number=number,
                type=kind.TYPE_MESSAGE if type_name else kind.TYPE_STRING,
                type_name=type_name or None,
                label=kind.LABEL_REPEATED if name == "details" else kind.LABEL_OPTIONAL,
            )

    add("Status", ("details", 3, ".google.protobuf.Any"))
    add("ErrorInfo", ("reason", 1, ""), ("domain", 2, ""))
    add("RetryInfo", ("retry_delay", 1, ".google.protobuf.Duration"))
    pool.Add(file)
    names = ("Status", "ErrorInfo", "RetryInfo")
    status, info, retry = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{name}")) for name in names
    )
    return status, info, retry


_STATUS, _ERROR_INFO, _RETRY_INFO = _message_classes()
