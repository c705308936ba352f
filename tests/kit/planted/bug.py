"""What a planted bug is."""

from typing import NamedTuple

GATEWAY = "gateway/tablegate/gateway/"
CLIENT = "clients/python/tablegate/client/"


class Bug(NamedTuple):
    """A change of the product's text: `find`, which is in `file` once, becomes `replace`. `tests` are pytest's."""

    name: str
    file: str
    find: str
    replace: str
    tests: str
