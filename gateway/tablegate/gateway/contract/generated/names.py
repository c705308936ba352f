"""Names of fields and messages, and what they are in words: of generated queries, and of row messages that are made."""

import re

_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """Return a name in lower case, with underscores between its words: "order_id" of orderId and order-id."""
    return re.sub(r"[-. _]+", "_", _BETWEEN_WORDS.sub("_", name)).lower()


def words_of(name: str) -> str:
    """Return a name as words, as comments have it: "order ID" of order_id."""
    return " ".join("ID" if word == "id" else word for word in name.split("_") if word) or name


def capitalized(text: str) -> str:
    """Return a text with its first letter large, and the others as they are."""
    return text[:1].upper() + text[1:]


def folded(name: str) -> str:
    """Return what of a name must differ from others: JSON has no underscores, and protoc looks at case as well."""
    return name.replace("_", "").lower()
