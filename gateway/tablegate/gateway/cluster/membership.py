"""What a gateway is in a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

GATEWAYS_TOPIC = "gateways"
REPLICAS = 2  # one gateway may die, and each partition is still answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A gateway of a cluster: its name, the same after a restart, and where the others reach it (host:port).

    `replicas` is how many gateways are to have each partition, `replicas_of` that of certain tables; 0 is all.
    """

    gateway_id: str
    endpoint: str
    zone: str = ""
    replicas: int = REPLICAS
    replicas_of: Mapping[str, int] = field(default_factory=dict)
    topic: str = GATEWAYS_TOPIC

    def replicas_wanted(self, table: str) -> int:
        """Return how many gateways are to have each partition of a table; 0 is all."""
        return self.replicas_of.get(table, self.replicas)


def own_id(membership: Membership | None) -> str:
    """Return a gateway's name in its cluster; "" for one that stands alone."""
    return "" if membership is None else membership.gateway_id
