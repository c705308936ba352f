from collections.abc import Iterator

import pytest

from tests.kit.gateways_in_process.cluster import EACH_ON_TWO, GrpcCluster
from tests.kit.gateways_in_process.metadata import ROWS
from tests.kit.table.filled import rating


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number) for number in range(ROWS))
        yield cluster
