"""The bugs that are planted, each with the fewest tests of `make test` that have to notice it; none needs Java."""

from tests.kit.planted import in_answers, in_replication, in_stores
from tests.kit.planted.bug import Bug

BUGS: list[Bug] = [*in_stores.BUGS, *in_replication.BUGS, *in_answers.BUGS]
