"""tablegate.v1.GatewayService: what the replicator says of this gateway."""

from tablegate.gateway.query.call import Call, Methods, UnaryMethod
from tablegate.gateway.query.errors import StoreAway
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable

STATUS_SERVICE = "tablegate.v1.GatewayService"
STATUS_TIMEOUT_S = 5.0


def status_methods(store: StoreReader) -> Methods:
    """Return GetStatus, answered with the bytes that the replicator left in `store`."""

    def get_status(_data: bytes, _call: Call) -> bytes:
        try:
            with store.snapshot() as snapshot:
                return snapshot.status()
        except StoreUnavailable as error:
            raise StoreAway from error

    return {f"/{STATUS_SERVICE}/GetStatus": UnaryMethod(get_status, STATUS_TIMEOUT_S, STATUS_TIMEOUT_S)}
