"""HPACK (RFC 7541): header blocks of clients, decoded.

In Python, because it is as fast here as a decoder in Rust with the checks around it that it needs: most fields are one
byte, an index into a table. What we send is encoded in `tablegate.gateway.http.headers`.
"""

Field = tuple[bytes, bytes]

TABLE_BYTES = 4_096  # of the dynamic table: the default, which we announce nothing else than
_ENTRY_BYTES = 32  # what an entry counts beside its name and value
_INTEGER_BYTES_MAX = 5  # holds any number that means something here
_KEPT_STRING_BYTES_MIN = 16  # Huffman strings that are kept decoded: shorter ones are as quick to decode,
_KEPT_STRING_BYTES_MAX = 2_048  # and longer ones are rare
_KEPT_STRINGS_BYTES = 16_384  # in one connection

_STATIC = (
    ":authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|"
    ":status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|"
    "accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|"
    "cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|"
    "last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|"
    "server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
_STATIC_FIELDS: tuple[Field, ...] = tuple(
    (name, value) for name, _, value in (entry.partition(b" ") for entry in _STATIC.encode().split(b"|"))
)
_DYNAMIC = len(_STATIC_FIELDS) + 1  # index of the newest entry

# The code is canonical: it follows from which symbols have codes of which length. All that are not here have 28 bits.
_EOS = 256
_SYMBOLS: dict[int, bytes] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf\xc5"
    b"\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    30: b"\n\r\x16",
}
_OTHERS_BITS = 28


class HpackError(Exception):
    """A block that is not HPACK; the connection's tables cannot be trusted any more."""


def huffman_codes() -> dict[int, tuple[int, int]]:
    """Return code and bits by symbol, with 256 for the end of a string."""
    bits = dict.fromkeys(range(256), _OTHERS_BITS)
    for length, symbols in _SYMBOLS.items():
        bits |= dict.fromkeys(symbols, length)
    bits[_EOS] = max(_SYMBOLS)
    codes = {}
    code = length = 0
    for symbol in sorted(bits, key=lambda symbol: (bits[symbol], symbol)):
        code <<= bits[symbol] - length
        length = bits[symbol]
        codes[symbol] = code, length
        code += 1
    return codes


_Row = list[tuple[int, bytes]]  # by byte: the state that it leads to, and the symbols that it completes


def _huffman_tree() -> list[list[int]]:
    """Return the inner places of the code's tree, each with where 0 and 1 lead: a place, or ~symbol; the root is 0.

    The last place is a dead end, where EOS leads: no string may hold it.
    """
    tree = [[0, 0]]
    for symbol, (code, length) in huffman_codes().items():
        place = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if tree[place][bit] == 0:
                tree[place][bit] = len(tree)
                tree.append([0, 0])
            place = tree[place][bit]
        tree[place][code & 1] = ~symbol
    dead = len(tree)
    tree.append([dead, dead])
    return [[dead if way == ~_EOS else way for way in ways] for ways in tree]


def _ends() -> frozenset[int]:
    """Return where a string may end: padding is the beginning of EOS, ones, and shorter than a byte."""
    places = [0]
    for _ in range(7):
        places.append(_TREE[places[-1]][1])
    return frozenset(places)


_TREE = _huffman_tree()
_ENDS = _ends()
_ROWS: list[_Row | None] = [None] * len(_TREE)  # made when first needed: text needs few of them


def _row(start: int) -> _Row:
    row = []
    for byte in range(256):
        place, symbols = start, bytearray()
        for shift in range(7, -1, -1):
            place = _TREE[place][byte >> shift & 1]
            if place < 0:
                symbols.append(~place)
                place = 0
        row.append((place, bytes(symbols)))
    _ROWS[start] = row
    return row


def huffman_decoded(data: bytes) -> bytes:
    """Return a Huffman-coded string, decoded."""
    rows = _ROWS
    place = 0
    pieces = []
    for byte in data:
        place, piece = (rows[place] or _row(place))[byte]
        pieces.append(piece)
    if place not in _ENDS:
        raise HpackError("Huffman code has more than its end, or is not padded by ones")
    return b"".join(pieces)


class HpackDecoder:
    """Decodes the blocks of one connection, in their order: each may change what the next ones mean."""

    __slots__ = ("_bytes", "_bytes_max", "_kept", "_kept_bytes", "_table")

    def __init__(self) -> None:
        self._table: list[Field] = [(b"", b""), *_STATIC_FIELDS]  # by index; the dynamic table, newest first, follows
        self._bytes = 0
        self._bytes_max = TABLE_BYTES
        self._kept: dict[bytes, bytes] = {}
        self._kept_bytes = 0

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block; raise `HpackError`. They may count far more bytes than the block has."""
        table = self._table
        fields: list[Field] = []
        add = fields.append
        at, end = 0, len(block)
        try:
            while at < end:
                byte = block[at]
                at += 1
                if byte > 0x80:
                    if byte == 0xFF:
                        byte, at = _integer(block, at, 0x7F)
                        add(table[byte])
                    else:
                        add(table[byte & 0x7F])
                elif byte & 0x40:
                    at = self._literal(block, at, byte & 0x3F, 0x3F, fields)
                    self._insert(fields[-1])
                elif byte & 0x20:
                    at = self._resize(block, at, byte & 0x1F, fields)
                elif byte == 0x80:
                    raise HpackError("index 0")
                else:
                    at = self._literal(block, at, byte & 0xF, 0xF, fields)
        except IndexError:
            raise HpackError("block ends inside a field, or an index is too large") from None
        return fields

    def _literal(self, block: bytes, at: int, index: int, limit: int, fields: list[Field]) -> int:
        """Add a field whose value is in the block; return where it ends. `limit`: the index that has more bytes."""
        if index == limit:
            index, at = _integer(block, at, limit)
        if index:
            name = self._table[index][0]
        else:
            name, at = self._string(block, at)
        value, at = self._string(block, at)
        fields.append((name, value))
        return at

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        """Return a string, and where it ends."""
        first = block[at]
        size = first & 0x7F
        at += 1
        if size == 0x7F:
            size, at = _integer(block, at, 0x7F)
        end = at + size
        if end > len(block):
            raise HpackError("string ends outside its block")
        data = block[at:end]
        if first < 0x80:
            return data, end
        if _KEPT_STRING_BYTES_MIN <= size <= _KEPT_STRING_BYTES_MAX:
            return self._kept.get(data) or self._keep(data), end
        return huffman_decoded(data), end

    def _keep(self, data: bytes) -> bytes:
        """Decode a string and keep it: clients repeat those that they do not index."""
        text = huffman_decoded(data)
        self._kept_bytes += len(data) + len(text)
        if self._kept_bytes > _KEPT_STRINGS_BYTES:
            self._kept.clear()
            self._kept_bytes = len(data) + len(text)
        self._kept[data] = text
        return text

    def _insert(self, field: Field) -> None:
        self._bytes += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._table.insert(_DYNAMIC, field)
        if self._bytes > self._bytes_max:
            self._evict()

    def _evict(self) -> None:
        """Drop the oldest entries, until the rest fits: also the newest, where it does not fit alone."""
        while self._bytes > self._bytes_max:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES

    def _resize(self, block: bytes, at: int, size: int, fields: list[Field]) -> int:
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if fields or size > TABLE_BYTES:
            raise HpackError("size of the table is said after a field, or larger than allowed")
        self._bytes_max = size
        self._evict()
        return at


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return an integer that goes on at `at`, and where it ends; `value`: what its first byte held."""
    for place in range(_INTEGER_BYTES_MAX):
        byte = block[at + place]
        value += (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise HpackError("integer is too long")
