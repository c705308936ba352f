"""The page of limits, with each number from the constant or the default that bounds it."""

from tablegate.gateway.access import api_keys, audit, issuer_keys, tokens, views
from tablegate.gateway.cluster import scatter
from tablegate.gateway.contract import indexes, types
from tablegate.gateway.contract.binder import queries
from tablegate.gateway.contract.tokens import CLIENT_TOKEN_CHARS_MAX
from tablegate.gateway.http import h1_connection, h2_connection, json_codec, listener, transport
from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.h2 import budget, control
from tablegate.gateway.http.h2 import connection as http2
from tablegate.gateway.http.h2 import stream as http2_stream
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX
from tablegate.gateway.http.memory import REQUEST_BYTES
from tablegate.gateway.http.rest import arrow
from tablegate.gateway.http.rpc import calls, turns
from tablegate.gateway.query import index_reads, masks
from tablegate.gateway.query.limits import DEFAULT_LIMITS as QUERY
from tablegate.gateway.query.subscribe import selections

LISTENER = listener.Limits()
HTTP1, HTTP2, MEMORY, WAIT = LISTENER.http1, LISTENER.http2, LISTENER.memory, LISTENER.wait
CALLS = calls.CallLimits()
ARROW = arrow.ArrowLimits()


def limits_page() -> str:
    """Return the page, without the note at its head."""
    text = "# Limits\n\n" + _INTRODUCTION
    text += "\n| what | limit | beyond it |\n|---|---|---|\n"
    for what, limit, beyond in _rows():
        text += f"| {what} | {limit} | {beyond} |\n"
    return text + _rest()


_INTRODUCTION = """\
Whatever a client does, it makes a gateway's process hold no more than these limits for each of its connections and \
streams. They are constants, or defaults of constructors, beside the code that they bound; the numbers here are read \
from them.
"""


def _rows() -> list[tuple[str, str, str]]:
    """Return what is limited, the limit, and what happens beyond it."""
    return [*_of_requests(), *_of_queries(), *_of_connections(), *_of_everybody(), *_of_slow_clients(), *_of_floods()]


def _of_requests() -> list[tuple[str, str, str]]:
    return [
        (
            "request message",
            f"{_bytes(MESSAGE_BYTES_MAX)} (JSON, base64: {_bytes(json_codec.JSON_BYTES_MAX)}), gzip counted unpacked",
            "RESOURCE_EXHAUSTED, REQUEST_TOO_LARGE; the connection continues (HTTP/1.1: ends)",
        ),
        (
            "values of a request in JSON: fields, items, objects",
            f"{json_codec.VALUES_MAX:,}, and those of as many keys as a BatchGet takes",
            "INVALID_ARGUMENT, INVALID_FIELD; too many keys: TOO_MANY_KEYS",
        ),
        (
            "what gzip packs",
            f"{calls.GZIP_RATIO_MAX} times its length beyond {_bytes(MESSAGE_BYTES_MAX)}",
            "RESOURCE_EXHAUSTED, REQUEST_TOO_LARGE",
        ),
        (
            "keys of a BatchGet; rows of a page",
            f"{queries.BATCH_KEYS_MAX:,}; {queries.PAGE_SIZE_MAX:,} and {_bytes(QUERY.page_bytes_max)}",
            "TOO_MANY_KEYS; the page ends early, with a token",
        ),
        (
            "paths of a field mask",
            f"{masks.PATHS_MAX:,}; the {masks.MASKS_MAX:,} masks of a process that were used last are kept compiled",
            "INVALID_ARGUMENT, INVALID_FIELD; others are compiled again",
        ),
        (
            "header fields",
            _bytes(HEADER_BYTES_MAX),
            "431; a longer block on the wire ends the connection",
        ),
        (
            "a token of a client's",
            f"{CLIENT_TOKEN_CHARS_MAX - 1:,} characters",
            (
                'one of a read says "everything" in place of positions; one of a subscription begins anew ([decision '
                "69](../decisions/0069-tokens-under-4-kb.md))"
            ),
        ),
    ]


def _of_queries() -> list[tuple[str, str, str]]:
    return [
        (
            "indexes of a table",
            f"{indexes.INDEXES_MAX}: each makes an apply slower",
            "`tablegate check` refuses the contract",
        ),
        (
            "bytes of the columns of an index",
            f"{indexes.INDEX_BYTES_MAX}: an LMDB key has 511",
            (
                "longer ones are cut: such rows are found, in the order of their keys; columns that are longer "
                "whatever they hold are refused by `tablegate check`"
            ),
        ),
        (
            "rows of one value that a Get by a unique index looks at for a principal who sees some",
            f"{index_reads.SAME_VALUES_MAX}",
            "FAILED_PRECONDITION, INDEX_NOT_UNIQUE",
        ),
        ("partitions of a subscription", f"{selections.PARTITIONS_MAX:,}", "INVALID_ARGUMENT, INVALID_FIELD"),
        (
            "an answer of another gateway",
            _bytes(scatter.ANSWER_BYTES_MAX),
            "a BatchGet asks for its halves; other calls get RESOURCE_EXHAUSTED, ANSWER_TOO_LARGE",
        ),
        (
            "values of a claim that finds rows",
            f"{views.VALUES_MAX}, of {views.VALUES_CHARS_MAX:,} characters",
            "PERMISSION_DENIED, NOT_ALLOWED",
        ),
        (
            "rows that a page looks at, of which a principal sees some",
            f"{QUERY.read_rows_max:,}",
            "the page ends early, with a token",
        ),
        (
            "changes queued for a subscriber that reads too slowly",
            _bytes(QUERY.subscriber_bytes_max),
            (
                "it is taken out of the broadcast and gets the last of each key's changes at each step; where its "
                "contract says `slow: SLOW_SUBSCRIBER_DISCONNECT`, its stream ends"
            ),
        ),
        (
            "changes queued for all subscribers of a table, in a process",
            _bytes(QUERY.queued_bytes_max),
            "who has some queued already is one that reads too slowly",
        ),
    ]


def _of_connections() -> list[tuple[str, str, str]]:
    return [
        (
            "bodies not yet served, of one connection",
            (
                f"{_bytes(http2_stream.CONNECTION_BYTES_MIN)} (HTTP/1.1: one, and "
                f"{_bytes(h1_connection.AHEAD_BYTES_MAX)} of what is sent ahead)"
            ),
            "its window stays shut",
        ),
        (
            "answers that a client does not read",
            (
                f"{_bytes(h2_connection.UNSENT_BYTES_MAX)} a connection, one message a stream; none read for "
                f"{HTTP2.stall_s:g} s"
            ),
            "nothing more of it is served; then it is ended",
        ),
        ("calls at once on a connection", f"{http2.STREAMS_MAX:,}", "REFUSED_STREAM"),
        (
            "age of a connection",
            f"{LISTENER.age_s * 0.8 / 60:g} to {LISTENER.age_s / 60:g} minutes",
            "its client is asked to come again; streams on it go on",
        ),
    ]


def _of_everybody() -> list[tuple[str, str, str]]:
    return [
        (
            "bytes that all connections hold, of requests and answers",
            (
                f"{_bytes(MEMORY.bytes_max)} a process, and {_bytes(REQUEST_BYTES)} for each of its `--streams`; "
                f"{_bytes(MEMORY.even_bytes)} of a connection stay allowed"
            ),
            (
                "from half on, who holds more may send no more of bodies; from three quarters on, its calls get "
                "RESOURCE_EXHAUSTED; at the end, connections of the address that holds the most are closed ([decision "
                "126](../decisions/0126-one-budget-of-bytes.md))"
            ),
        ),
        (
            "streams (`--streams`); waiting calls; connections of a process",
            f"{CALLS.streams_max:,}; {CALLS.calls_max:,}; {LISTENER.connections_max:,}",
            (
                "RESOURCE_EXHAUSTED; RESOURCE_EXHAUSTED; closed: whoever has the most makes room for who has fewer "
                "([decision 111](../decisions/0111-a-full-gateway-is-shared.md))"
            ),
        ),
        (
            "answers of Arrow in a process; a batch of them",
            f"{ARROW.at_work_max}; {ARROW.batch_rows:,} rows, {_bytes(ARROW.batch_bytes)}, {ARROW.batch_cells:,} cells",
            "RESOURCE_EXHAUSTED, OVERLOADED; the next batch begins",
        ),
        (
            "streams, waiting calls of a principal",
            f"{CALLS.streams_of_principal_max:,}, {CALLS.calls_of_principal_max:,}",
            "RESOURCE_EXHAUSTED",
        ),
        (
            "calls, streams, scans and bytes of a principal",
            "as the [access file](../how-to/say-who-may-read-what.md#limits) says",
            "RESOURCE_EXHAUSTED, LIMIT_EXCEEDED",
        ),
    ]


def _of_slow_clients() -> list[tuple[str, str, str]]:
    assert (HTTP1.body_s, HTTP1.whole_body_s, HTTP1.whole_answer_s) == (
        HTTP2.body_s,
        HTTP2.whole_body_s,
        HTTP2.whole_answer_s,
    ), "the page says the same of both versions"
    return [
        (
            "first bytes, TLS handshake; headers of HTTP/1.1",
            f"{LISTENER.detection_s:g} s; {HTTP1.header_s:g} s",
            "ended",
        ),
        (
            "a body: without a byte; whole",
            f"{HTTP2.body_s:g} s; {HTTP2.whole_body_s:g} s",
            "its stream is reset (HTTP/1.1: 408)",
        ),
        (
            "time to take all of an answer that waits",
            f"{HTTP2.whole_answer_s:g} s",
            "its stream is reset (HTTP/1.1: the connection ends)",
        ),
        (
            "silence",
            (
                f"HTTP/2: a PING after {HTTP2.silence_s:g} s, {HTTP2.answer_s:g} s to answer it; HTTP/1.1: "
                f"{HTTP1.idle_s:g} s between requests"
            ),
            "ended",
        ),
    ]


def _of_floods() -> list[tuple[str, str, str]]:
    return [
        (
            "streams reset by a client or through its fault",
            f"{budget.RESETS_MAX} in {budget.SPAN_S:g} s and more than were answered",
            "GOAWAY ENHANCE_YOUR_CALM",
        ),
        (
            "frames that carry nothing",
            (
                f"{budget.EMPTY_FRAMES_MAX:,} in {budget.SPAN_S:g} s and {_word(budget.EMPTY_FRAMES_EACH)} for each "
                f"answer; SETTINGS and idle PINGs weigh {_word(control.SETTINGS_WEIGHT)}"
            ),
            "the same",
        ),
        (
            "records of TLS that carry nothing, such as new keys",
            f"{transport.EMPTY_RECORDS_MAX} a connection",
            "ended",
        ),
        (
            "turns of all streams in one round of the event loop",
            f"{turns.TURN_S * 1_000:g} ms, at least one message",
            "the others wait for the next round",
        ),
        (
            "turns of changes that go to many streams",
            "one before each such round, about 2 ms",
            "the rest goes before the next rounds",
        ),
        (
            "one connection's turn",
            (
                f"{h2_connection.TURN_FRAMES} requests (HTTP/1.1: {h1_connection.SERVED_MAX}) or "
                f"{HTTP2.turn_s * 1_000:g} ms"
            ),
            (
                "the others have theirs: first who has used the least of the loop ([decision "
                "127](../decisions/0127-connections-take-turns.md))"
            ),
        ),
        (
            "wait for such a turn, by the processor's clock",
            f"{WAIT.wait_max_s * 1_000:g} ms, once there was no pause for {WAIT.burst_s:g} s",
            ("RESOURCE_EXHAUSTED, OVERLOADED ([decision 131](../decisions/0131-who-waits-too-long-is-refused.md))"),
        ),
    ]


def _rest() -> str:
    return f"""
Of credentials: a token (JWT) has {_bytes(tokens.TOKEN_BYTES_MAX)} at most, an API key {api_keys.KEY_BYTES_MAX} bytes. \
A worker remembers {tokens.SEEN_MAX:,} tokens that it has verified, or {_bytes(tokens.SEEN_BYTES_MAX)} of them with \
their claims. An issuer has {issuer_keys.KEYS_MAX} keys in {_bytes(issuer_keys.SET_BYTES_MAX)}; tokens with unknown \
keys let a worker ask for them once in {issuer_keys.EARLY_S:g} seconds at most, and an answer may take \
{issuer_keys.WHOLE_S:g} seconds. The audit log keeps \
{_bytes(audit.BUFFER_BYTES_MAX)} that it cannot write.

Of jobs: a batch of an atomic table has {types.BATCH_CHANGES_MAX:,} changes at most. Its sources give no more records \
a batch; where a processor makes more of them, the job stops before it writes.

A *principal* is who the call's credential names; without an access file the URI, else the common name, else the \
subject of a verified client certificate. Each worker counts for itself. Without a certificate there is no such limit, \
because an address may be a proxy's or a NAT's; an address counts where a process is full. Calls that gateways forward \
do not count for a principal either: they counted where they came in.
"""


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count:,} bytes"


def _word(number: int) -> str:
    return {4: "four", 10: "ten"}[number]
