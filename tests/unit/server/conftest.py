from collections.abc import Iterator

import pytest

from tests.kit.grpc_cluster import EACH_ON_TWO, GrpcCluster
from tests.kit.tables import rating

ROWS = 60


@pytest.fixture
def doors() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as doors:
        doors.put(rating(number) for number in range(ROWS))
        yield doors
