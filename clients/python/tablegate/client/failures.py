"""Why a call failed: the status code, the gateway's reason, and when to retry.

Decision: docs/decisions/0167-a-refusal-has-a-reason.md
"""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from tablegate.client.messages import NUMBER, TEXT, Field, message_classes

DOMAIN = "tablegate"
DETAILS_TRAILER = "grpc-status-details-bin"
PASSING_CODES = frozenset({"UNAVAILABLE", "CANCELLED"})
CUT_OFF_CODES = frozenset({"INTERNAL", "UNKNOWN"})
PASSING_REASONS = frozenset({"LIMIT_EXCEEDED", "OVERLOADED", "SLOW_SUBSCRIBER"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call ended. `code` is the name of its status; `reason` the gateway's, "" where it gave none."""

    code: str
    text: str
    reason: str = ""
    retry_after_s: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether the same call may do better later."""
        return self.code in PASSING_CODES or self.reason in PASSING_REASONS

    @property
    def passes_once_admitted(self) -> bool:
        """Whether it may where a stream had brought something.

        A stream ends with the credential that it was begun with: the next one shows that which is good by then. And a
        gateway gives a reason with each refusal: without one a proxy has reset the stream, or ended it halfway.
        """
        return self.passes or self.code == "UNAUTHENTICATED" or (self.code in CUT_OFF_CODES and not self.reason)


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
    """Return the failure of an RpcError that is a call as well, as those of ended calls are."""
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


def status_details(code: int, text: str, reason: str, retry_after_s: float) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata of an error as a gateway gives it."""
    status = _STATUS(code=code, message=text)
    status.details.add().Pack(_ERROR_INFO(domain=DOMAIN, reason=reason))
    if retry_after_s:
        info = _RETRY_INFO()
        info.retry_delay.FromNanoseconds(int(retry_after_s * 1e9))
        status.details.add().Pack(info)
    return ((DETAILS_TRAILER, bytes(status.SerializeToString())),)


_CLASSES = message_classes(
    "google.rpc",
    {
        "Status": [
            Field("code", 1, NUMBER),
            Field("message", 2, TEXT),
            Field("details", 3, "google.protobuf.Any", repeated=True),
        ],
        "ErrorInfo": [Field("reason", 1, TEXT), Field("domain", 2, TEXT)],
        "RetryInfo": [Field("retry_delay", 1, "google.protobuf.Duration")],
    },
)
_STATUS, _ERROR_INFO, _RETRY_INFO, *_ = _CLASSES.values()
