"""Seeds of random tests: a few at each `make check`, all at `make test`."""

from typing import Any

import pytest


def seeds(count: int, *, in_check: int) -> list[Any]:
    """Return the seeds below `count` for `pytest.mark.parametrize`; `make check` runs those below `in_check`."""
    assert 0 < in_check < count
    return [pytest.param(seed, marks=pytest.mark.tools if seed >= in_check else ()) for seed in range(count)]
