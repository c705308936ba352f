"""Seeds and examples of random tests: a few at each `make check`, all at `make test`."""

from typing import Any

import pytest
from hypothesis import settings


def seeds(count: int, *, in_check: int) -> list[Any]:
    """Return the seeds below `count` for `pytest.mark.parametrize`; `make check` runs those below `in_check`."""
    assert 0 < in_check < count
    # The mark leaves the others out by itself. Where they are known to be left out, it costs seconds to collect them.
    made = in_check if _is_check() else count
    return [pytest.param(seed, marks=pytest.mark.tools if seed >= in_check else ()) for seed in range(made)]


def examples(count: int) -> settings:
    """Return Hypothesis's settings for `count` examples; `make check` tries no more than its own profile says."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return settings(max_examples=min(count, profile.max_examples) if _is_check() else count)


def _is_check() -> bool:
    return settings.get_current_profile_name() == "check"
