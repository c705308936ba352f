"""Connections of clients from seeds: some requests, interleaved and well formed, of which one thing may be changed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import hpack

from tablegate.gateway.http.h2 import frames

Fields = list[tuple[bytes, bytes]]

_EVEN, _IDLE = 2, 101  # streams that no client may open; that none has opened


@dataclass(frozen=True)
class Frame:
    """A frame of a client. `fields`: of a header block that it begins, else None; `pad`: bytes of padding, or none."""

    kind: int
    flags: int
    stream: int
    payload: bytes = b""
    fields: tuple[tuple[bytes, bytes], ...] | None = None
    pad: int | None = None

    def bytes(self, encoder: hpack.Encoder) -> bytes:
        """Return it as it is sent."""
        payload = self.payload if self.fields is None else encoder.encode(self.fields)
        if self.pad is None:
            return frames.frame(self.kind, self.flags, self.stream, payload)
        padded = bytes((self.pad,)) + payload + bytes(self.pad)
        return frames.frame(self.kind, self.flags | frames.PADDED, self.stream, padded)


@dataclass(frozen=True)
class Case:
    """What a client sends, and what was changed of it; "" for nothing."""

    data: bytes
    change: str


def case(seed: int) -> Case:
    """Return the case of a seed."""
    choice = random.Random(seed)
    sent, change = _connection(choice), ""
    if choice.random() < 0.7:
        change = choice.choice(list(CHANGES))
        sent = CHANGES[change](choice, sent)
    encoder = hpack.Encoder()
    data = frames.PREFACE + frames.settings() + b"".join(_parts(choice, each, encoder) for each in sent)
    return Case(data, change)


def _parts(choice: random.Random, frame: Frame, encoder: hpack.Encoder) -> bytes:
    """Return a frame as bytes; a header block without padding may come in several frames."""
    data = frame.bytes(encoder)
    head = frames.FRAME_HEADER_BYTES
    if frame.kind != frames.HEADERS or frame.pad is not None or len(data) < head + 8 or choice.random() < 0.7:
        return data
    at = choice.randrange(head + 6, len(data))
    first = frames.frame(frames.HEADERS, frame.flags & ~frames.END_HEADERS, frame.stream, data[head:at])
    return first + frames.frame(frames.CONTINUATION, frames.END_HEADERS, frame.stream, data[at:])


def _connection(choice: random.Random) -> list[Frame]:
    streams = [_request(choice, 2 * number + 1) for number in range(choice.randrange(1, 6))]
    sent: list[Frame] = []
    opened = 0
    while any(streams):
        # Streams are opened in order; what follows on each comes in any order among the others.
        ready = [each for number, each in enumerate(streams) if each and number <= opened]
        parts = choice.choice(ready)
        opened = max(opened, streams.index(parts) + 1)
        sent.append(parts.pop(0))
        if choice.random() < 0.2:
            sent.append(_noise(choice, sent[-1].stream))
    return sent


def _request(choice: random.Random, stream: int) -> list[Frame]:
    body = [choice.randbytes(choice.choice([0, 1, 5, 300])) for _ in range(choice.choice([0, 0, 1, 1, 2, 3]))]
    has_trailers = bool(body) and choice.random() < 0.2
    fields: Fields = [
        (b":method", choice.choice([b"GET", b"POST", b"HEAD", b"PUT", b"DELETE"])),
        (b":scheme", choice.choice([b"http", b"https"])),
        (b":path", b"/%d?q=%d" % (stream, choice.randrange(100))),
        (b":authority", choice.choice([b"localhost", b"a.example:50051"])),
    ]
    choice.shuffle(fields)
    more: Fields = [
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"x-%d" % choice.randrange(5), b"v" * choice.choice([0, 1, 40])),
        (b"accept", b"a/b"),
        (b"accept", b"c/d"),
        (b"cookie", b"a=1"),
        (b"cookie", b"b=2"),
        (b"content-length", b"%d" % sum(map(len, body))),
    ]
    fields += [each for each in more if choice.random() < 0.4]
    last = frames.END_STREAM
    head = Frame(frames.HEADERS, frames.END_HEADERS | (0 if body else last), stream, fields=tuple(fields))
    parts = [head if choice.random() < 0.8 else replace(head, pad=choice.randrange(9))]
    for number, piece in enumerate(body):
        is_last = number == len(body) - 1 and not has_trailers
        pad = choice.randrange(20) if choice.random() < 0.2 else None
        parts.append(Frame(frames.DATA, last if is_last else 0, stream, piece, pad=pad))
    if has_trailers:
        trailers = ((b"x-rest", b"1"),)
        parts.append(Frame(frames.HEADERS, frames.END_HEADERS | last, stream, fields=trailers))
    return parts


def _noise(choice: random.Random, stream: int) -> Frame:
    return choice.choice(
        [
            Frame(frames.PING, 0, 0, choice.randbytes(8)),
            Frame(frames.PING, frames.ACK, 0, choice.randbytes(8)),
            Frame(frames.WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x05"),
            Frame(frames.WINDOW_UPDATE, 0, stream, b"\x00\x00\x00\x05"),
            Frame(frames.PRIORITY, 0, stream, b"\x00\x00\x00\x00\x07"),
            Frame(frames.SETTINGS, 0, 0, b"\x00\x04\x00\x00\x10\x00"),
            Frame(frames.SETTINGS, 0, 0, b"\x00\x99\x00\x00\x10\x00"),
            Frame(0xBE, 0xFF, stream, b"of a kind that nobody knows"),
        ]
    )


# What is changed of a connection, by a name.


def _at(choice: random.Random, sent: list[Frame], *kinds: int) -> int:
    """Return the place of a frame, of these kinds if there is any."""
    places = [number for number, each in enumerate(sent) if not kinds or each.kind in kinds]
    return choice.choice(places or range(len(sent)))


def _changed(change: Callable[[random.Random, Frame], Frame], *kinds: int) -> Callable[..., list[Frame]]:
    def apply(choice: random.Random, sent: list[Frame]) -> list[Frame]:
        at = _at(choice, sent, *kinds)
        return [*sent[:at], change(choice, sent[at]), *sent[at + 1 :]]

    return apply


def _with_fields(change: Callable[[random.Random, Fields], Fields]) -> Callable[..., list[Frame]]:
    def apply(choice: random.Random, frame: Frame) -> Frame:
        return frame if frame.fields is None else replace(frame, fields=tuple(change(choice, list(frame.fields))))

    return _changed(apply, frames.HEADERS)


def _added(name: bytes, value: bytes) -> Callable[..., list[Frame]]:
    return _with_fields(lambda _, fields: [*fields, (name, value)])


def _instead(name: bytes, value: bytes) -> Callable[..., list[Frame]]:
    return _with_fields(lambda _, fields: [(each, value if each == name else old) for each, old in fields])


def _without(name: bytes) -> Callable[..., list[Frame]]:
    return _with_fields(lambda _, fields: [(each, value) for each, value in fields if each != name])


def _inserted(frame: Frame) -> Callable[..., list[Frame]]:
    def apply(choice: random.Random, sent: list[Frame]) -> list[Frame]:
        at = choice.randrange(len(sent) + 1)
        return [*sent[:at], frame, *sent[at:]]

    return apply


def _on_a_stream(frame: Frame) -> Callable[..., list[Frame]]:
    def apply(choice: random.Random, sent: list[Frame]) -> list[Frame]:
        at = choice.randrange(1, len(sent) + 1)
        return [*sent[:at], replace(frame, stream=sent[at - 1].stream), *sent[at:]]

    return apply


def _left_out(choice: random.Random, sent: list[Frame]) -> list[Frame]:
    at = _at(choice, sent)
    return [*sent[:at], *sent[at + 1 :]]


def _twice(choice: random.Random, sent: list[Frame]) -> list[Frame]:
    at = _at(choice, sent)
    return [*sent[: at + 1], sent[at], *sent[at + 1 :]]


def _swapped(choice: random.Random, sent: list[Frame]) -> list[Frame]:
    one, other = _at(choice, sent), _at(choice, sent)
    sent = list(sent)
    sent[one], sent[other] = sent[other], sent[one]
    return sent


CHANGES: dict[str, Callable[[random.Random, list[Frame]], list[Frame]]] = {
    "a frame is left out": _left_out,
    "a frame comes twice": _twice,
    "two frames are swapped": _swapped,
    "a flag": _changed(lambda choice, frame: replace(frame, flags=frame.flags ^ (1 << choice.randrange(8)))),
    "another stream": _changed(lambda choice, each: replace(each, stream=choice.choice([0, 1, 3, _EVEN, _IDLE]))),
    "another kind": _changed(lambda choice, frame: replace(frame, kind=choice.randrange(10), fields=None)),
    "a payload is cut": _changed(lambda _, frame: replace(frame, payload=frame.payload[:-1], fields=None)),
    "random bytes for a block": _changed(
        lambda choice, frame: replace(frame, payload=choice.randbytes(9), fields=None), frames.HEADERS
    ),
    "too much padding": _changed(
        lambda _, frame: replace(frame, flags=frame.flags | frames.PADDED, payload=b"\xff" + frame.payload, pad=None),
        frames.DATA,
    ),
    "a name in capitals": _added(b"X-Loud", b"1"),
    "a name with a space": _added(b"x y", b"1"),
    "a name with a colon": _added(b":odd", b"1"),
    "an empty name": _added(b"", b"1"),
    "a value with a line's end": _added(b"x-line", b"a\nb"),
    "a value with a zero": _added(b"x-zero", b"a\0b"),
    "a value with spaces around": _added(b"x-wide", b" a "),
    "a field of a connection": _added(b"connection", b"close"),
    "transfer-encoding": _added(b"transfer-encoding", b"chunked"),
    "te": _added(b"te", b"gzip"),
    "a second method": _with_fields(lambda _, fields: [(b":method", b"GET"), *fields]),
    "a second path": _with_fields(lambda _, fields: [(b":path", b"/other"), *fields]),
    "a method behind fields": _with_fields(lambda _, fields: [*_others(fields), (b"x-a", b"1"), *_pseudo(fields)]),
    "no method": _without(b":method"),
    "no scheme": _without(b":scheme"),
    "no path": _without(b":path"),
    "no authority": _without(b":authority"),
    "an empty path": _instead(b":path", b""),
    "a path without a slash": _instead(b":path", b"path"),
    "a star for a path": _instead(b":path", b"*"),
    "a method that is no token": _instead(b":method", b"G T"),
    "connect": _instead(b":method", b"CONNECT"),
    "another length": _with_fields(lambda choice, fields: [*fields, (b"content-length", b"%d" % choice.randrange(9))]),
    "a length that is none": _added(b"content-length", b"-1"),
    "a host": _added(b"host", b"other.example"),
    "a window by 0": _inserted(Frame(frames.WINDOW_UPDATE, 0, 0, bytes(4))),
    "a stream's window by 0": _on_a_stream(Frame(frames.WINDOW_UPDATE, 0, 0, bytes(4))),
    "a window too wide": _inserted(Frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")),
    "a stream's window too wide": _on_a_stream(Frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")),
    "a window of a stream that is idle": _inserted(Frame(frames.WINDOW_UPDATE, 0, _IDLE, b"\x00\x00\x00\x05")),
    "a ping of 7 bytes": _inserted(Frame(frames.PING, 0, 0, bytes(7))),
    "a ping on a stream": _inserted(Frame(frames.PING, 0, 1, bytes(8))),
    "settings on a stream": _inserted(Frame(frames.SETTINGS, 0, 1)),
    "settings of 5 bytes": _inserted(Frame(frames.SETTINGS, 0, 0, bytes(5))),
    "settings that are confirmed with bytes": _inserted(Frame(frames.SETTINGS, frames.ACK, 0, bytes(6))),
    "a window setting too wide": _inserted(Frame(frames.SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff")),
    "a frame size too small": _inserted(Frame(frames.SETTINGS, 0, 0, b"\x00\x05\x00\x00\x00\x01")),
    "push that is neither on nor off": _inserted(Frame(frames.SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x02")),
    "a reset": _on_a_stream(Frame(frames.RST_STREAM, 0, 0, b"\x00\x00\x00\x08")),
    "a reset of a stream that is idle": _inserted(Frame(frames.RST_STREAM, 0, _IDLE, b"\x00\x00\x00\x08")),
    "a reset of 3 bytes": _on_a_stream(Frame(frames.RST_STREAM, 0, 0, bytes(3))),
    "a priority of 4 bytes": _on_a_stream(Frame(frames.PRIORITY, 0, 0, bytes(4))),
    "data on a stream that is idle": _inserted(Frame(frames.DATA, 0, _IDLE, b"x")),
    "data on stream 0": _inserted(Frame(frames.DATA, 0, 0, b"x")),
    "a push": _on_a_stream(Frame(frames.PUSH_PROMISE, frames.END_HEADERS, 0, b"\x00\x00\x00\x02")),
    "a continuation of nothing": _on_a_stream(Frame(frames.CONTINUATION, frames.END_HEADERS, 0)),
    "goaway": _inserted(Frame(frames.GOAWAY, 0, 0, bytes(8))),
}


def _pseudo(fields: Fields) -> Fields:
    return [each for each in fields if each[0][:1] == b":"]


def _others(fields: Fields) -> Fields:
    return [each for each in fields if each[0][:1] != b":"]
