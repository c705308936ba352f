"""Tokens: opaque to clients, signed, and refused wherever they do not belong.

A token is "1." and the base64url of its body (`tablegate.internal.v1.Token`) and of a 16-byte tag over both. A body
that is long is deflated, and the token begins with "2.". Of what was read a token has the place of each partition;
where that would make it longer than clients should carry, it says that everything was (`ReadPositions`).

A token has a key in it, up to which a walk has read. Whoever may not see all rows may not see that key either: his
tokens are sealed as well, and begin with "3.".

Decision: docs/decisions/0023-token-in-each-message.md
Decision: docs/decisions/0069-tokens-under-4-kb.md
"""

import binascii
import hashlib
import hmac
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tablegate.gateway.contract.catalogue import Query, RangeQuery, ScanQuery, SubscribeQuery
from tablegate.gateway.contract.lineage import Place, add_places, clear_places, places_of
from tablegate.gateway.contract.types import Partition
from tablegate.internal.v1.tokens_pb2 import Token, TokenKind

CLIENT_TOKEN_CHARS_MAX = 4_096  # clients keep tokens in headers, URLs and databases
TOKEN_CHARS_MAX = 65_536  # of what gateways give each other for a subscription: change positions of 1,000 partitions
POSITIONS_MAX = 2_000  # of more partitions next offsets do not fit a client's token, so that is not tried
KEY_BYTES_MIN = 32  # a key shorter than the digest weakens HMAC-SHA256

_PLAIN, _DEFLATED, _SEALED = "1.", "2.", "3."
_DEFLATE_BYTES_MIN = 512  # a body of a few partitions would become no shorter
_BODY_BYTES_MAX = 1024 * 1024  # what a deflated body may become
_NONCE_BYTES = 16
_TAG_BYTES = 16  # half of SHA-256: a forger has one chance in 2**128 a try


class TokenFault(Enum):
    """Why a token is refused; the value ends the sentence "the token ..."."""

    DAMAGED = "is damaged, or signed with a key that this gateway does not have"
    OTHER_KIND = "is of another kind"
    OTHER_TABLE = "is of another table"
    OTHER_REQUEST = "is of another method, of other params, or of another view of the table"


class InvalidToken(ValueError):
    """A token that does not belong where it was given; `fault` says why."""

    def __init__(self, fault: TokenFault) -> None:
        super().__init__(f"the token {fault.value}")
        self.fault = fault


class StaleGeneration(ValueError):
    """A good token of another generation of the table.

    Where `token_generation` is the higher one, this gateway is behind; else the table was rebuilt since.
    """

    def __init__(self, token_generation: int, generation: int) -> None:
        super().__init__(
            f"the token is of generation {token_generation} of the table, which has generation {generation}"
        )
        self.token_generation = token_generation
        self.generation = generation


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """Up to where an answer was read: the place of each partition in it; no more is said of others.

    `everything`: the partitions are too many to be named. What was read is no more than what the changelog has now, or
    at any later time: so whoever has all that Kafka has when it is asked has what was read.
    """

    places: Mapping[Partition, Place] = field(default_factory=dict)
    everything: bool = False

    def __bool__(self) -> bool:
        """Return whether it asks anything of a read that is to be as new."""
        return self.everything or bool(self.places)

    def joined(self, other: "ReadPositions") -> "ReadPositions":
        """Return what either of them has read: of each partition the place that is further."""
        if other == self or not self:
            return other
        places = dict(self.places)
        for partition, place in other.places.items():
            places[partition] = max(place, places.get(partition, place))
        return ReadPositions(places, self.everything or other.everything)


def put_positions(token: Token, read: ReadPositions) -> None:
    """Put into a token what was read, exactly."""
    token.everything = read.everything
    add_places(token, dict(sorted(read.places.items())))


def positions_of(token: Token) -> ReadPositions:
    """Return what was read, as `put_positions` was given it."""
    return ReadPositions(places_of(token), token.everything)


def clear_positions(token: Token) -> None:
    """Remove from a token what `put_positions` has put there."""
    token.everything = False
    clear_places(token)


class TokenSigner:
    """Makes and opens tokens. The first of `keys` signs; any of them opens, so that a key can be replaced."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if isinstance(keys, bytes) or not keys:
            raise ValueError("a token signer needs a sequence of at least one key")
        if any(len(key) < KEY_BYTES_MIN for key in keys):
            raise ValueError(f"a token key has at least {KEY_BYTES_MIN} bytes; make a longer one")
        self._keys = tuple(keys)
        self._seals = False

    def sealing(self) -> "TokenSigner":
        """Return a signer of the same keys, whose tokens say nothing to those who have them."""
        signer = TokenSigner(self._keys)
        signer._seals = True
        return signer

    def sign(self, token: Token) -> str:
        """Return the text of `token`."""
        body, version = token.SerializeToString(), _PLAIN
        if len(body) >= _DEFLATE_BYTES_MIN:
            deflated = zlib.compress(body)
            if len(deflated) < len(body):
                body, version = deflated, _DEFLATED
        if self._seals:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            body = nonce + _sealed(self._keys[0], nonce, version.encode("ascii") + body)
            version = _SEALED
        return version + urlsafe_b64encode(body + _tag(self._keys[0], version, body)).rstrip(b"=").decode("ascii")

    def sign_read(self, token: Token, read: ReadPositions) -> str:
        """Return the text of `token` with what was read put into it: with `everything` where it would be too long."""
        if not read.everything and len(read.places) <= POSITIONS_MAX:
            put_positions(token, read)
            text = self.sign(token)
            if len(text) < CLIENT_TOKEN_CHARS_MAX:
                return text
            clear_positions(token)
        token.everything = True
        return self.sign(token)

    def open(self, text: str, *, kind: TokenKind, table: str, generation: int | None, request_hash: int = 0) -> Token:
        """Return what `sign` was given; raise `InvalidToken`, or `StaleGeneration` where all but that fits.

        A `generation` of None fits any.
        """
        token = self._verified(text)
        if token.kind != kind:
            raise InvalidToken(TokenFault.OTHER_KIND)
        if token.table != table:
            raise InvalidToken(TokenFault.OTHER_TABLE)
        if token.request_hash != request_hash:
            raise InvalidToken(TokenFault.OTHER_REQUEST)
        if generation is not None and token.generation != generation:
            raise StaleGeneration(token.generation, generation)
        return token

    def _verified(self, text: str) -> Token:
        version, raw = text[: len(_PLAIN)], _decoded(text)
        body, tag = raw[:-_TAG_BYTES], raw[-_TAG_BYTES:]
        # Every key is tried: a list of two or three, and no early end that could be timed.
        matches = [hmac.compare_digest(_tag(key, version, body), tag) for key in self._keys]
        if not any(matches):
            raise InvalidToken(TokenFault.DAMAGED)
        if version == _SEALED:
            nonce, sealed = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
            opened = _sealed(self._keys[matches.index(True)], nonce, sealed)
            version, body = opened[: len(_PLAIN)].decode("latin-1"), opened[len(_PLAIN) :]
        try:
            return Token.FromString(_inflated(body) if version == _DEFLATED else body)
        except (DecodeError, zlib.error):
            raise InvalidToken(TokenFault.DAMAGED) from None


def _sealed(key: bytes, nonce: bytes, text: bytes) -> bytes:
    """Return text sealed, or opened again: XOR with what SHAKE256 makes of key and nonce. The tag is over what results.

    The library of TLS has better ciphers, but Python gives none of them.
    """
    stream = hashlib.shake_256(b"tablegate seal\x00" + nonce + key).digest(len(text))
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")


def _tag(key: bytes, version: str, body: bytes) -> bytes:
    return hmac.digest(key, version.encode("ascii") + body, "sha256")[:_TAG_BYTES]


def _inflated(body: bytes) -> bytes:
    return zlib.decompressobj().decompress(body, _BODY_BYTES_MAX)


def _decoded(text: str) -> bytes:
    if len(text) > TOKEN_CHARS_MAX or not text.startswith((_PLAIN, _DEFLATED, _SEALED)) or not text.isascii():
        raise InvalidToken(TokenFault.DAMAGED)
    encoded = text[len(_PLAIN) :].encode("ascii")
    try:
        raw = urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except binascii.Error:
        raise InvalidToken(TokenFault.DAMAGED) from None
    # The decoder skips foreign characters and loose last bits: only the one spelling that `sign` gives is taken.
    if len(raw) < _TAG_BYTES or urlsafe_b64encode(raw).rstrip(b"=") != encoded:
        raise InvalidToken(TokenFault.DAMAGED)
    return raw


def request_hasher(query: Query, view: bytes = b"") -> Callable[[Message], int]:
    """Return the function from a request of `query` to the `request_hash` of its tokens; never 0.

    `view`: the digest of what whoever asks may see of the table, where that is not all of it: a token is of that view
    alone.

    Method and params count, and the index that rows are read by. What may change from page to page does not: page size,
    token, and the read, scan and subscribe options; nor the mask of a Range or a Scan, which says not which rows.
    That of a Subscribe counts: a copy has rows of one mask.
    """
    path = query.path.encode()
    if isinstance(query, RangeQuery) and query.index is not None:
        path += query.index.id  # the token's key is an entry of it
    request_class = query.request_class
    left_out = [field.name for field in _fields_that_may_change(query)]

    def request_hash(request: Message) -> int:
        params = request_class()
        params.CopyFrom(request)
        params.DiscardUnknownFields()
        for name in left_out:
            params.ClearField(name)
        canonical = view + path + b"\x00" + params.SerializeToString(deterministic=True)
        return int.from_bytes(hashlib.sha256(canonical).digest()[:8], "big") or 1

    return request_hash


def _fields_that_may_change(query: Query) -> list[FieldDescriptor]:
    fields = [query.read_options]
    match query:
        case RangeQuery():
            fields += [query.page_size, query.page_token, query.read_mask]
        case ScanQuery():
            fields += [query.scan_options, query.read_mask]
        case SubscribeQuery():
            fields += [query.subscribe_options]
    return [field for field in fields if field is not None]
