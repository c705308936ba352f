"""The token of a forwarded call: what one gateway asks of another, signed, so that no client can say it.

Decision: docs/decisions/0033-a-forward-is-the-same-call.md
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tablegate.gateway.access.views import Value, View
from tablegate.gateway.contract.tokens import InvalidToken, TokenFault, TokenSigner
from tablegate.internal.v1 import tokens_pb2
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_FORWARD, TOKEN_KIND_VIEW_FORWARD, Token

FORWARDED = "tablegate-forwarded"  # the name of the metadata that says: one of ours asks
# Older, or as far ahead: a token that was caught somewhere, or a clock that is wrong by more than one may be. It is so
# long as a token is worth little to whoever caught it: a gateway that is shown it does not ask others, and that is all.
TOKEN_AGE_MAX_MS = 3_600_000
KEPT_MS = 10_000  # a token is used again for so long: signing it costs as much as a read
LISTED_MAX = 100  # more partitions are a bit each: 65,536 are 8 KiB, and metadata may have 16
_KEPT_MAX = 1_024


class ForwardToken(NamedTuple):
    """What a gateway asks another one for.

    `generation`: it must serve this one; 0: any. `partitions`, in order: only from these; none: from those that the
    request says. `resume_token` takes the place of the request's where it is set. `view`: what of the table the
    principal sees for whom it asks; None: all.
    """

    table: str
    generation: int = 0
    partitions: tuple[int, ...] = ()
    resume_token: str = ""
    view: View | None = None


class ForeignForwardToken(ValueError):
    """A token that no gateway of this cluster made now; its text ends the sentence "the token ..."."""


class ForwardTokenSigner:
    """Signs tokens, and opens them. One thread."""

    def __init__(self, signer: TokenSigner, now_ms: Callable[[], int]) -> None:
        self._signer = signer
        self._now_ms = now_ms
        self._signed: dict[ForwardToken, tuple[int, str]] = {}
        self._opened: dict[tuple[str, str], tuple[int, ForwardToken]] = {}

    def sign(self, token: ForwardToken) -> str:
        """Return the text of a token."""
        now_ms = self._now_ms()
        # Tokens say nothing of the request, so that one can be kept for all requests to the same partitions. What makes
        # them safe is that they say who may answer from what, and for how long.
        made_ms, text = self._signed.get(token, (0, ""))
        if not 0 <= now_ms - made_ms < KEPT_MS:
            signed = Token(
                kind=TOKEN_KIND_FORWARD if token.view is None else TOKEN_KIND_VIEW_FORWARD,
                table=token.table,
                generation=token.generation,
                issue_time_ms=now_ms,
                resume_token=token.resume_token,
            )
            _put_partitions(signed, token.partitions)
            if token.view is not None:
                signed.view.CopyFrom(_view_message(token.view))
            text = self._signer.sign(signed)
            # A resume token makes it one of a kind: keeping it would only fill the memory.
            if not token.resume_token:
                _keep(self._signed, token, (now_ms, text))
        return text

    def open(self, text: str, table: str) -> ForwardToken:
        """Return the token of a call of that table; raise `ForeignForwardToken`."""
        known = self._opened.get((text, table))
        if known is None:
            known = self._verified(text, table)
            if not known[1].resume_token:
                _keep(self._opened, (text, table), known)
        issue_time_ms, token = known
        # The age is checked on every call, also of a token whose signature was checked before.
        if abs(self._now_ms() - issue_time_ms) > TOKEN_AGE_MAX_MS:
            raise ForeignForwardToken("was made too long ago, or by a clock that is ahead")
        return token

    def _verified(self, text: str, table: str) -> tuple[int, ForwardToken]:
        try:
            try:
                signed = self._signer.open(text, kind=TOKEN_KIND_FORWARD, table=table, generation=None)
            except InvalidToken as error:
                if error.fault is not TokenFault.OTHER_KIND:
                    raise
                signed = self._signer.open(text, kind=TOKEN_KIND_VIEW_FORWARD, table=table, generation=None)
        except InvalidToken as error:
            raise ForeignForwardToken(error.fault.value) from None
        view = _view_of(signed.view) if signed.kind == TOKEN_KIND_VIEW_FORWARD else None
        token = ForwardToken(table, signed.generation, _partitions_of(signed), signed.resume_token, view)
        return signed.issue_time_ms, token


def _view_message(view: View) -> tokens_pb2.View:
    message = tokens_pb2.View(hidden=view.hidden)
    for column, values in view.rows:
        rule = message.rows.add(column=column)
        for value in values:
            if isinstance(value, bool):
                rule.truths.append(value)
            elif isinstance(value, int):
                rule.numbers.append(value)
            else:
                rule.texts.append(value)
    return message


def _view_of(message: tokens_pb2.View) -> View:
    def values(rule: tokens_pb2.RowRule) -> tuple[Value, ...]:
        return (*rule.texts, *rule.numbers, *rule.truths)

    return View(tuple((rule.column, values(rule)) for rule in message.rows), tuple(message.hidden))


def _put_partitions(token: Token, partitions: Sequence[int]) -> None:
    if len(partitions) <= LISTED_MAX:
        token.partitions.extend(partitions)
        return
    bits = bytearray(max(partitions) // 8 + 1)
    for partition in partitions:
        bits[partition // 8] |= 1 << partition % 8
    token.partition_bits = bytes(bits)


def _partitions_of(token: Token) -> tuple[int, ...]:
    if not token.partition_bits:
        return tuple(token.partitions)
    bits = token.partition_bits
    return tuple(number for number in range(8 * len(bits)) if bits[number // 8] >> number % 8 & 1)


def _keep(kept: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    if len(kept) >= _KEPT_MAX:
        kept.clear()
    kept[key] = value
