"""What is checked and taken before a gateway starts: contract, cluster, address, data directory, token keys.

Each mistake ends the start here, with one sentence for the one who made it; what only shows later, in a child, would be
a line of a log and a gateway that answers nothing.

Decision: docs/decisions/0031-clusters-are-joined-on-purpose.md
"""

import fcntl
import ipaddress
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.kafka_settings import (
    SECURITY_PROTOCOL,
    check_bootstrap,
    host_of,
)
from tablegate.gateway.contract.tokens import KEY_BYTES_MIN
from tablegate.gateway.contract.types import is_topic_name
from tablegate.gateway.http.cors import ANY
from tablegate.gateway.http.tls import TlsError
from tablegate.gateway.kafka.client import refusal
from tablegate.gateway.server.config import GATEWAY_ID_FILE, LOCK_FILE, TOKEN_KEY_FILE, ServeConfig, ServeError
from tablegate.gateway.stores.snapshots.files import BadSnapshotsUrl
from tablegate.gateway.stores.snapshots.opening import open_files

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", re.ASCII)
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ZONE_MAX = 253  # characters, the most that the name of a host has
_REPLICAS_MAX = 1_000  # more gateways than can hear each other's beats


def load_contracts(paths: tuple[Path, ...]) -> tuple[FileDescriptorSet, Catalogue]:
    """Return the contracts' files and their catalogue; raise `ServeError` with all that is wrong."""
    if not paths:
        raise ServeError("a gateway needs a contract; give a .proto file or a descriptor set")
    try:
        files = merge([load_descriptors(path) for path in paths])
        return files, bind(files)
    except (DescriptorError, ContractError) as error:
        raise ServeError(str(error)) from None


def check_tls(config: ServeConfig) -> None:
    """Raise `ServeError` where the TLS files cannot serve."""
    if config.tls is not None:
        try:
            config.tls.load()
        except TlsError as error:
            raise ServeError(str(error)) from None


def check_access(config: ServeConfig, catalogue: Catalogue) -> None:
    """Raise `ServeError` where the access file is wrong."""
    if config.access is not None:
        try:
            Gate(config.access, catalogue).close()
        except AccessFileError as error:
            raise ServeError(str(error)) from None


def check_traces(config: ServeConfig) -> None:
    """Raise `ServeError` where spans cannot be made, or the environment does not say how to send them."""
    if config.traces:
        try:
            from tablegate.gateway.telemetry.span_sender import TracesError, check_environment
        except ModuleNotFoundError:
            raise ServeError('--traces needs a library: pip install "tablegate-gateway[otel]"') from None
        try:
            check_environment(os.environ)
        except TracesError as error:
            raise ServeError(str(error)) from None


def check_origins(origins: tuple[str, ...]) -> None:
    """Raise `ServeError` where one is written as no browser sends it."""
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise ServeError(
                f'"{origin}" is no origin; give scheme, host in lower case and port where it has one, '
                "such as https://shop.example, or * for all"
            )


def check_hosts(hosts: tuple[str, ...]) -> None:
    """Raise `ServeError` where one is written as no request has it."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ServeError(f'"{host}" is no name of a host; give it in lower case and without a port')


def check_kafka(config: ServeConfig) -> None:
    """Raise `ServeError` where brokers cannot be named so, or refuse who the gateway says it is.

    Brokers that are away stop no start: the gateway answers from its store.
    """
    try:
        check_bootstrap(config.bootstrap)
    except KafkaSettingsError as error:
        raise ServeError(str(error)) from None
    if SECURITY_PROTOCOL in config.kafka_options and (why := refusal(config.kafka_options)):
        raise ServeError(why)


def check_topics(config: ServeConfig) -> None:
    """Raise `ServeError` where one cannot be, or both are one."""
    for option, topic in (("--tables-topic", config.tables_topic), ("--gateways-topic", config.gateways_topic)):
        if not is_topic_name(topic):
            raise ServeError(
                f'{option} "{topic}" is no topic; give a name of letters, digits, dots, dashes and underscores'
            )
    if config.tables_topic == config.gateways_topic:
        raise ServeError(
            f'"{config.tables_topic}" cannot be the topic of manifests and of gateways; give another --gateways-topic'
        )


def check_store_url(url: str | None) -> None:
    """Raise `ServeError` where it names no Redis."""
    if url is not None:
        from tablegate.gateway.stores.redis.connection import BadRedisUrl, parse_address

        try:
            parse_address(url)
        except BadRedisUrl as error:
            raise ServeError(str(error)) from None


def check_snapshots(config: ServeConfig) -> None:
    """Raise `ServeError` where snapshot files cannot be kept there; `ModuleNotFoundError` without what that needs.

    A directory or a store that is away stops no start: the changelogs are there.
    """
    if config.snapshots is None:
        return
    if config.store_url is not None:
        raise ServeError(
            "--snapshots is for stores on this machine, and --store names a Redis, which keeps its rows itself; "
            "leave one of them out"
        )
    try:
        open_files(config.snapshots.url)
    except BadSnapshotsUrl as error:
        raise ServeError(str(error)) from None


# What a gateway of a cluster is started with.


def check_cluster(config: ServeConfig, catalogue: Catalogue) -> None:
    """Raise `ServeError` where the gateway cannot be one of a cluster with these options."""
    if config.advertise is None:
        if config.gateway_id is not None or config.zone or config.replicas is not None or config.replicas_of:
            raise ServeError(
                "--gateway-id, --zone and --replicas are for a gateway of a cluster; give --advertise HOST:PORT, "
                "where the other gateways reach this one, or leave them out"
            )
        return
    host = host_of(config.advertise)
    if host is None:
        raise ServeError(f'--advertise "{config.advertise}" is no address; give host:port, such as gateway-1:50051')
    if _is_everywhere(host):
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
    given = {} if config.replicas is None else {"replicas": config.replicas}
    return Membership(
        gateway_id=config.gateway_id or _kept_name(config),
        endpoint=config.advertise,
        zone=config.zone,
        replicas_of=config.replicas_of,
        topic=config.gateways_topic,
        **given,
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
        _write_private(path, f"{name}\n")
    except OSError as error:
        raise ServeError(f'"{path}" cannot be read or written: {error.strerror}; give another --data') from None
    return name


# What a gateway takes, so that no other does.


@dataclass(frozen=True, slots=True)
class Reserved:
    """An address that no other program can take while `holder` is open. It takes no connections itself."""

    address: str
    port: int
    holder: socket.socket


def reserve_admin(config: ServeConfig, data: Reserved) -> Reserved | None:
    """Return the address of the admin port, taken for our workers, None without one; raise `ServeError`."""
    if config.admin is None:
        return None
    host, port = _host_and_port(config.admin)
    _, numeric = _resolve(host, config.admin)
    data_host = data.address.rpartition(":")[0].strip("[]")
    # The port that we have taken ourselves looks free to us, as our workers share it.
    if port == data.port and (numeric == data_host or _is_everywhere(numeric) or _is_everywhere(data_host)):
        raise ServeError(f'--admin "{config.admin}" is the port of --listen; choose another')
    return reserve_address(config.admin, insecure=config.insecure or config.tls is not None, option="--admin")


def reserve_address(listen: str, *, insecure: bool, option: str = "--listen") -> Reserved:
    """Return the address to listen on, which `option` gave, taken for our workers; raise `ServeError`."""
    host, port = _host_and_port(listen)
    family, numeric = _resolve(host, listen)
    if not ipaddress.ip_address(numeric.partition("%")[0]).is_loopback and not insecure:
        raise ServeError(
            f'listening on "{listen}" without TLS would let anyone read it; '
            "give --tls-cert and --tls-key, listen on 127.0.0.1, or say --insecure"
        )
    # Workers share their port, so a program that shares it too would go unseen: try it alone first.
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a gateway before us may linger
        try:
            alone.bind((numeric, port))
            alone.listen()
        except OSError as error:
            raise ServeError(_listen_failure(listen, error, option)) from None
        port = alone.getsockname()[1]
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holder.bind((numeric, port))
    except OSError as error:
        holder.close()
        raise ServeError(_listen_failure(listen, error, option)) from None
    address = f"[{numeric}]:{port}" if family == socket.AF_INET6 else f"{numeric}:{port}"
    return Reserved(address, port, holder)


def _listen_failure(listen: str, error: OSError, option: str) -> str:
    return f'cannot listen on "{listen}": {error.strerror or error}; stop what is there, or choose another {option}'


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port_text = listen.rpartition(":")
    if not colon or not port_text.isdecimal() or int(port_text) > 65_535 or not host:
        raise ServeError(f'"{listen}" is no address; give host:port, such as 127.0.0.1:50051')
    return host.removeprefix("[").removesuffix("]"), int(port_text)


def _resolve(host: str, listen: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServeError(f'the host of "{listen}" is not known here: {error}; check its name') from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


@dataclass(frozen=True, slots=True)
class Holder:
    """The gateway that has locked a data directory: its process, and the address at which it is asked."""

    pid: int
    address: str


def lock_data(data: Path, address: str) -> int:
    """Make the data directory and lock it; return the lock's descriptor. It is free when every copy of it is closed.

    `address` is where the gateway is asked, as clients of the command line name it; `holder_of` returns it.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServeError(f'data directory "{data}" cannot be used: {error.strerror}; choose another --data') from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = _holder(lock)
        os.close(lock)
        who = f"another gateway (process {holder.pid})" if holder else "another gateway"
        raise ServeError(f'data directory "{data}" is in use by {who}; stop it, or choose another --data') from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n{address}\n".encode(), 0)
    return lock


def holder_of(data: Path) -> Holder | None:
    """Return the gateway that runs on a data directory; None where none does."""
    try:
        lock = os.open(data / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _holder(lock)
    finally:
        os.close(lock)
    return None


def _holder(lock: int) -> Holder | None:
    """Return what a locked file says; None where it does not say it yet."""
    pid, _, address = os.pread(lock, 1_024, 0).decode("utf-8", "replace").partition("\n")
    return Holder(int(pid), address.strip()) if pid.isdecimal() and address else None


def token_keys(config: ServeConfig) -> tuple[bytes, ...]:
    """Return the keys that sign tokens; a new one is made where the default file is not there."""
    path = config.token_key_file or config.data / TOKEN_KEY_FILE
    try:
        if config.token_key_file is None and not path.exists():
            _write_private(path, secrets.token_hex(KEY_BYTES_MIN) + "\n")
        keys = tuple(bytes.fromhex(line) for line in path.read_text("ascii").split())
    except OSError as error:
        raise ServeError(f'token key file "{path}" cannot be used: {error.strerror}; check it') from None
    except ValueError:
        keys = ()
    if not keys or any(len(key) < KEY_BYTES_MIN for key in keys):
        digits = 2 * KEY_BYTES_MIN
        raise ServeError(f'token key file "{path}" is damaged; it has a key a line, of at least {digits} hex digits')
    return keys


def _write_private(path: Path, text: str) -> None:
    """Write `path` whole or not at all, for nobody else to read."""
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(path)
