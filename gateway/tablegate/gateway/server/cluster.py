"""What a gateway is started with to be one of a cluster: checked, and given a name."""

import ipaddress
import re
import secrets

from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.server.config import GATEWAY_ID_FILE, ServeConfig, ServeError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,5})")
_PORT_MAX = 65_535
_ZONE_MAX = 253  # characters, the most that the name of a host has
_REPLICAS_MAX = 1_000  # more gateways than can hear each other's beats


def check_cluster(config: ServeConfig, catalogue: Catalogue) -> None:
    """Raise `ServeError` where the gateway cannot be one of a cluster as it is told."""
    if config.advertise is None:
        if config.gateway_id is not None or config.zone or config.replicas is not None or config.replicas_of:
            raise ServeError(
                "--gateway-id, --zone and --replicas are for a gateway of a cluster; give --advertise HOST:PORT, "
                "where the other gateways reach this one, or leave them out"
            )
        return
    endpoint = _ENDPOINT.fullmatch(config.advertise)
    if endpoint is None or not 0 < int(endpoint[2]) <= _PORT_MAX:
        raise ServeError(f'--advertise "{config.advertise}" is no address; give host:port, such as gateway-1:50051')
    if _is_everywhere(endpoint[1]):
        raise ServeError(
            f'--advertise "{config.advertise}" leads every gateway to itself; give the name or the address by which '
            "the others reach this one"
        )
    if config.token_key_file is None:
        raise ServeError(
            "a gateway of a cluster opens the tokens of the others; give --token-key a file that is the same on all"
        )
    if config.gateway_id is not None and _NAME.fullmatch(config.gateway_id) is None:
        raise ServeError(
            f'--gateway-id "{config.gateway_id}" is no name; use at most 64 letters, digits, dots, dashes and '
            "underscores, a letter or digit first"
        )
    if len(config.zone) > _ZONE_MAX or not config.zone.isprintable() or config.zone != config.zone.strip():
        raise ServeError(
            f"--zone {config.zone!r} is no name; use at most {_ZONE_MAX} characters, with no space at its ends"
        )
    for replicas in (config.replicas or 0, *config.replicas_of.values()):
        if replicas > _REPLICAS_MAX:
            raise ServeError(f"--replicas {replicas} is more than {_REPLICAS_MAX}; give 0 for all gateways")
    for table, replicas in config.replicas_of.items():
        if table not in catalogue.tables:
            raise ServeError(f'--replicas {table}={replicas}: the contracts have no table "{table}"; name one of them')


def _is_everywhere(host: str) -> bool:
    """Return whether a host is an address to listen on: whoever connects to it reaches itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def membership_of(config: ServeConfig) -> Membership | None:
    """Return what the gateway is in its cluster; None where it stands alone. Its data directory is locked before."""
    if config.advertise is None:
        return None
    told = {} if config.replicas is None else {"replicas": config.replicas}
    return Membership(
        gateway_id=config.gateway_id or _kept_name(config),
        endpoint=config.advertise,
        zone=config.zone,
        replicas_of=config.replicas_of,
        topic=config.gateways_topic,
        **told,
    )


def _kept_name(config: ServeConfig) -> str:
    """Return the name in the data directory, made where there is none, so that it is the same after a restart."""
    path = config.data / GATEWAY_ID_FILE
    try:
        if path.exists():
            name = path.read_text(encoding="utf-8", errors="replace").strip()
            if _NAME.fullmatch(name) is None:
                raise ServeError(f'"{path}" has no gateway\'s name in it; remove it, or give --gateway-id')
            return name
        name = f"gateway-{secrets.token_hex(4)}"
        path.write_text(f"{name}\n", encoding="utf-8")
    except OSError as error:
        raise ServeError(f'"{path}" cannot be read or written: {error.strerror}; give another --data') from None
    return name
