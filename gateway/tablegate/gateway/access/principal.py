"""Who calls, proved by a credential."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Unauthenticated(Exception):
    """A credential is missing or wrong; the message is all that a client is told, and has nothing of the credential."""


class AccessFileError(ValueError):
    """The file of --access is wrong; the message says where, and what to do."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: one name for each, whatever credential it comes with next time, and what its credential says of it.

    `name`: such as "https://login.example ann", "certificate spiffe://shop/orders" or "key reports".
    `expires_at_s`: when the credential ends, in seconds since 1970.
    """

    name: str
    claims: Mapping[str, Any] = field(default_factory=dict)
    expires_at_s: float = math.inf
