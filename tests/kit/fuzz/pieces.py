"""One input as several, so that a fuzzer needs no more than bytes."""


def pieces_of(data: bytes) -> list[bytes]:
    """Return the pieces of an input: each follows its length, of two bytes; the last may be cut."""
    pieces = []
    while len(data) >= 2:
        end = 2 + int.from_bytes(data[:2], "big")
        pieces.append(data[2:end])
        data = data[end:]
    return pieces


def joined(*pieces: bytes) -> bytes:
    """Return the input that has these pieces."""
    return b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)
