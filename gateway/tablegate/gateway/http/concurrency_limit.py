"""Places for calls: how many of one kind may be at work at once in this process, and how many of those one principal's.

A principal is who the client's verified certificate says that it is. Without one there is only the process's limit: an
address would be no substitute, as a proxy or a NAT gives many clients the same.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tablegate.gateway.query.errors import Overloaded


class ConcurrencyLimit:
    """Those of one kind of call, `kind` in the plural. One event loop."""

    def __init__(self, kind: str, *, most: int, most_of_principal: int) -> None:
        self.taken = 0
        self._kind = kind
        self._most = most
        self._most_of_principal = most_of_principal
        self._taken_of: Counter[str] = Counter()  # only of those who have one

    @contextmanager
    def held(self, principal: str | None) -> Iterator[None]:
        """Hold a place for as long as the context; raise `Overloaded` where none is left, for all or for this one."""
        if self.taken >= self._most:
            raise Overloaded(f"all clients together have {self._most} {self._kind} at work here; back off")
        if principal is not None and self._taken_of[principal] >= self._most_of_principal:
            raise Overloaded(
                f"the subject of your certificate has {self._most_of_principal} {self._kind} at work here, which is as "
                "many as one client may have; end some, or back off"
            )
        self.taken += 1
        if principal is not None:
            self._taken_of[principal] += 1
        try:
            yield
        finally:
            self.taken -= 1
            if principal is not None:
                self._taken_of[principal] -= 1
                if not self._taken_of[principal]:
                    del self._taken_of[principal]
