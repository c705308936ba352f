"""The Huffman code of HPACK (RFC 7541, 5.2 and appendix B): strings of clients, decoded.

A string is decoded a byte at a time, not a bit: the state is the node of the code's tree that the bits so far lead to,
and a row of the table has, for each next byte, the symbols that it completes and the node after it. The whole table
would have 256 rows of 256 entries; a row is made when it is first needed, and text needs few of them.
"""


class HpackError(Exception):
    """A block that is not HPACK; the connection's tables cannot be trusted any more."""


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


def codes() -> dict[int, tuple[int, int]]:
    """Return code and bits by symbol, with 256 for the end of a string."""
    bits = dict.fromkeys(range(256), _OTHERS_BITS)
    for length, symbols in _SYMBOLS.items():
        bits |= dict.fromkeys(symbols, length)
    bits[_EOS] = max(_SYMBOLS)
    found = {}
    code = length = 0
    for symbol in sorted(bits, key=lambda symbol: (bits[symbol], symbol)):
        code <<= bits[symbol] - length
        length = bits[symbol]
        found[symbol] = code, length
        code += 1
    return found


_Row = list[tuple[int, bytes]]  # by byte: the node that it leads to, and the symbols that it completes


def _tree() -> list[list[int]]:
    """Return the inner nodes of the code's tree, each with the nodes that 0 and 1 lead to, or ~symbol; the root is 0.

    The last node is a dead end, to which EOS leads: no string may hold it.
    """
    tree = [[0, 0]]
    for symbol, (code, length) in codes().items():
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if tree[node][bit] == 0:
                tree[node][bit] = len(tree)
                tree.append([0, 0])
            node = tree[node][bit]
        tree[node][code & 1] = ~symbol
    dead = len(tree)
    tree.append([dead, dead])
    return [[dead if child == ~_EOS else child for child in children] for children in tree]


def _ends() -> frozenset[int]:
    """Return where a string may end: padding is the beginning of EOS, ones, and shorter than a byte."""
    nodes = [0]
    for _ in range(7):
        nodes.append(_TREE[nodes[-1]][1])
    return frozenset(nodes)


_TREE = _tree()
_ENDS = _ends()
_ROWS: list[_Row | None] = [None] * len(_TREE)  # made when first needed: text needs few of them


def _row(start: int) -> _Row:
    row = []
    for byte in range(256):
        node, symbols = start, bytearray()
        for shift in range(7, -1, -1):
            node = _TREE[node][byte >> shift & 1]
            if node < 0:
                symbols.append(~node)
                node = 0
        row.append((node, bytes(symbols)))
    _ROWS[start] = row
    return row


def decode(data: bytes) -> bytes:
    """Return a Huffman-coded string, decoded."""
    rows = _ROWS
    node = 0
    pieces = []
    for byte in data:
        node, piece = (rows[node] or _row(node))[byte]
        pieces.append(piece)
    if node not in _ENDS:
        raise HpackError("Huffman code has more than its end, or is not padded by ones")
    return b"".join(pieces)
