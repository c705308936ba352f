"""What a gateway refuses to start with: one clear sentence each."""

import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.server.app import START_DEATHS_MAX, _Announcer, serve
from tablegate.gateway.server.child import FAILED, LISTENING, SERVING, STORE_OPENED, SnapshotSettings
from tablegate.gateway.server.config import ServeConfig, ServeError
from tablegate.gateway.server.preflight import (
    Reserved,
    check_hosts,
    check_kafka,
    check_origins,
    check_snapshots,
    check_topics,
    load_contracts,
    lock_data,
    reserve_address,
    token_keys,
)
from tablegate.gateway.server.supervisor import EXITED
from tests.kit.table.filled import RATINGS, ROOT, catalogue_of


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on, sharing it with whoever wants."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def _config(data: Path, token_key_file: Path | None = None) -> ServeConfig:
    return ServeConfig(contracts=(RATINGS,), bootstrap="127.0.0.1:1", data=data, token_key_file=token_key_file)


def test_a_taken_port_is_refused_even_if_it_would_be_shared(taken: int) -> None:
    with pytest.raises(ServeError, match=f"127.0.0.1:{taken}.*in use.*choose another"):
        reserve_address(f"127.0.0.1:{taken}", insecure=False)


def test_a_reserved_port_is_ours_alone_and_takes_no_connections() -> None:
    reserved = reserve_address("127.0.0.1:0", insecure=False)
    with reserved.holder:
        assert reserved.address == f"127.0.0.1:{reserved.port}"
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", reserved.port))
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind(("127.0.0.1", reserved.port))
            worker.listen()
            with pytest.raises(ServeError):
                reserve_address(reserved.address, insecure=False)
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", reserved.port), timeout=1):
                    pass
    with reserve_address(reserved.address, insecure=False).holder:
        pass  # connections that linger do not keep a gateway from starting again


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_plaintext_beyond_loopback_must_be_said(listen: str) -> None:
    with pytest.raises(ServeError, match="without TLS"):
        reserve_address(listen, insecure=False)
    with reserve_address(listen, insecure=True).holder:
        pass


@pytest.mark.parametrize("listen", ["localhost:0", "[::1]:0"])
def test_names_and_ipv6_of_loopback(listen: str) -> None:
    with reserve_address(listen, insecure=False).holder:
        pass


@pytest.mark.parametrize("listen", ["", ":50051", "here", "127.0.0.1:x", "127.0.0.1:70000", "nobody.invalid:5"])
def test_odd_addresses_are_refused(listen: str) -> None:
    with pytest.raises(ServeError):
        reserve_address(listen, insecure=False)


def test_a_data_directory_has_one_gateway(tmp_path: Path) -> None:
    lock = lock_data(tmp_path / "data", "127.0.0.1:7")
    with pytest.raises(ServeError, match=f"in use by another gateway \\(process {os.getpid()}\\)"):
        lock_data(tmp_path / "data", "127.0.0.1:7")
    os.close(lock)
    os.close(lock_data(tmp_path / "data", "127.0.0.1:7"))
    (tmp_path / "file").touch()
    with pytest.raises(ServeError, match="cannot be used"):
        lock_data(tmp_path / "file", "127.0.0.1:7")


def test_a_token_key_is_made_once_for_nobody_else_to_read(tmp_path: Path) -> None:
    keys = token_keys(_config(tmp_path))
    assert keys == token_keys(_config(tmp_path))
    assert len(keys[0]) == 32
    assert stat.S_IMODE((tmp_path / "token.key").stat().st_mode) == 0o600


def test_token_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("aa" * 32 + "\n" + "bb" * 40 + "\n")
    assert token_keys(_config(tmp_path, path)) == (b"\xaa" * 32, b"\xbb" * 40)
    for text in ("", "junk", "aa" * 31):
        path.write_text(text)
        with pytest.raises(ServeError, match="damaged"):
            token_keys(_config(tmp_path, path))
    with pytest.raises(ServeError, match="cannot be used"):
        token_keys(_config(tmp_path, tmp_path / "nothing"))


def test_wrong_contracts_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="needs a contract"):
        load_contracts(())
    with pytest.raises(ServeError, match="is not a file"):
        load_contracts((tmp_path / "nothing.proto",))
    wrong = tmp_path / "wrong.proto"
    wrong.write_text(RATINGS.read_text().replace('key: "movie_id"', 'key: "nothing"'))
    with pytest.raises(ServeError, match="nothing"):
        load_contracts((wrong,))


@pytest.mark.parametrize(
    "origin", ["shop.example", "https://shop.example/", "", "https://münchen.example", "https://A.b"]
)
def test_origins_that_no_browser_sends_are_refused(origin: str) -> None:
    check_origins(("*", "https://shop.example", "http://localhost:8080", "http://[::1]:8080"))
    with pytest.raises(ServeError, match="is no origin"):
        check_origins((origin,))


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ({"tables_topic": ""}, '--tables-topic "" is no topic; give a name of letters'),
        ({"tables_topic": "ratings tables"}, '--tables-topic "ratings tables" is no topic'),
        ({"gateways_topic": ".."}, '--gateways-topic "[.][.]" is no topic'),
        ({"gateways_topic": "x" * 250}, "is no topic"),
        ({"gateways_topic": "tables"}, '"tables" cannot be the topic of manifests and of gateways'),
    ],
)
def test_topics_that_cannot_be_are_refused(tmp_path: Path, topics: dict[str, Any], why: str) -> None:
    check_topics(_config(tmp_path))
    with pytest.raises(ServeError, match=why):
        serve(replace(_config(tmp_path), listen="127.0.0.1:0", **topics))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bootstrap", ["", " ", "broker", "broker:", "broker:0", "broker:65536", "one:9092,,two:9092"])
def test_brokers_that_cannot_be_are_refused(tmp_path: Path, bootstrap: str) -> None:
    for right in ("127.0.0.1:9092", "one:9092, [::1]:9092", "PLAINTEXT://kafka_1.example:19092"):
        check_kafka(replace(_config(tmp_path), bootstrap=right))
    with pytest.raises(ServeError, match=r"bootstrap .* names no Kafka brokers; give HOST:PORT"):
        serve(replace(_config(tmp_path), listen="127.0.0.1:0", bootstrap=bootstrap))
    assert list(tmp_path.iterdir()) == []


def _refusal(*arguments: str) -> str:
    command = [sys.executable, "-m", "tablegate.gateway.cli", "serve", "--contract", str(RATINGS)]
    command += ["--bootstrap", "127.0.0.1:1", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    return line


def test_a_refused_start_is_one_line_and_leaves_no_process(tmp_path: Path, taken: int) -> None:
    assert "choose another --listen" in _refusal("--data", str(tmp_path / "a"), "--listen", f"127.0.0.1:{taken}")
    lock = lock_data(tmp_path / "b", "127.0.0.1:7")
    assert "in use by another gateway" in _refusal("--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0")
    os.close(lock)
    (tmp_path / "b" / "store").write_text("no directory")
    log = str(tmp_path / "log")
    line = _refusal("--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0", "--log-file", log)
    assert str(tmp_path / "b" / "store") in line


def test_kafka_options_that_no_client_takes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = ServeConfig(
        contracts=(RATINGS,),
        bootstrap="127.0.0.1:1",
        data=tmp_path / "data",
        listen="127.0.0.1:0",
        kafka_options={"no.such.option": "1"},
        log_file=tmp_path / "log",
    )
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with pytest.raises(ServeError, match=r"no\.such\.option"):
            serve(config)
    finally:
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def test_a_replicator_that_keeps_dying_before_it_begins_ends_the_start(tmp_path: Path) -> None:
    with reserve_address("127.0.0.1:0", insecure=False).holder as holder:
        announcer = _Announcer(_config(tmp_path), catalogue_of(), Reserved("127.0.0.1:1", 1, holder))
        stopped: list[bool] = []
        announcer.on_failure = lambda: stopped.append(True)
        for _ in range(START_DEATHS_MAX):
            assert not stopped
            announcer.on_event("replicator", {"event": EXITED})
        assert stopped
        assert "the log says why" in (announcer.failure or "")


def test_a_gateway_goes_on_whose_output_nobody_reads(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    program = (
        "from pathlib import Path\n"
        "from tests.integration.test_gateway_preflight import announced\n"
        f"announced(Path({str(tmp_path)!r}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr.decode().splitlines()[-1]) == (0, "announced")


def announced(data: Path) -> None:
    """Print what a gateway does that listens and serves."""
    with reserve_address("127.0.0.1:0", insecure=False).holder as holder:
        announcer = _Announcer(_config(data), catalogue_of(), Reserved("127.0.0.1:1", 1, holder))
        for number in range(_config(data).workers):
            for event in (LISTENING, SERVING):
                announcer.on_event(f"worker-{number}", {"event": event})
    print("announced", file=sys.stderr)


def test_a_replicator_that_dies_later_starts_again(tmp_path: Path) -> None:
    with reserve_address("127.0.0.1:0", insecure=False).holder as holder:
        announcer = _Announcer(_config(tmp_path), catalogue_of(), Reserved("127.0.0.1:1", 1, holder))
        announcer.on_event("replicator", {"event": STORE_OPENED})
        for _ in range(2 * START_DEATHS_MAX):
            announcer.on_event("replicator", {"event": FAILED, "reason": "x"})
            announcer.on_event("replicator", {"event": EXITED})
        assert announcer.failure is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:6379", "none of Redis: use redis://host:6379/0"),
        ("redis://:secret@127.0.0.1:1/0", r"Redis at 127\.0\.0\.1:1 does not answer .*: see that it runs"),
    ],
)
def test_a_redis_that_cannot_be_the_store_is_refused(tmp_path: Path, url: str, why: str) -> None:
    config = replace(_config(tmp_path), store_url=url, listen="127.0.0.1:0")
    with pytest.raises(ServeError, match=why) as refused:
        serve(config)
    assert "secret" not in str(refused.value)


def test_hosts_are_names_without_a_port() -> None:
    check_hosts(("gateway.example", "localhost", "10.0.0.7", "[::1]"))
    for host in ("", "Gateway.example", "gateway.example:50051", "https://gateway.example", "a b"):
        with pytest.raises(ServeError, match="is no name of a host; give it in lower case and without a port"):
            check_hosts((host,))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/folder", "give a directory, or a bucket: s3://, gs://, az://"),
        ("s3:///folder", "give a directory, or a bucket"),
        ("s3://key:secret@bucket/folder", "is a bucket and a folder alone"),
        ("s3://bucket/folder?region=here", "is a bucket and a folder alone"),
        ("file://host/folder", "give a path, or file:///path"),
    ],
)
def test_where_no_snapshot_files_can_be_is_refused(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(ServeError, match=why) as error:
        check_snapshots(replace(_config(tmp_path), snapshots=SnapshotSettings(url=url)))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "environment", "why"),
    [
        ("az://container/folder", {}, "Account must be specified"),
        ("az://container/folder", {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "?"}, "Access Key"),
        ("gs://bucket/folder", {"GOOGLE_APPLICATION_CREDENTIALS": "none.json"}, "none.json: No such file or directory"),
        ("s3://bucket/folder", {"AWS_TIMEOUT": "soon"}, 'failed to parse "soon"'),
    ],
)
def test_variables_that_open_no_bucket_are_a_sentence_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, environment: Mapping[str, str], why: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ServeError) as error:
        check_snapshots(replace(_config(tmp_path), snapshots=SnapshotSettings(url=url)))
    sentence = str(error.value)
    assert sentence.startswith(f'snapshots cannot be kept at "{url}": ')
    assert sentence.count(why) == 1
    assert "\n" not in sentence
    assert sentence.count("No such file") <= 1


def test_snapshot_files_of_a_store_in_redis_are_refused(tmp_path: Path) -> None:
    config = replace(_config(tmp_path), store_url="redis://host/0", snapshots=SnapshotSettings(url="files"))
    with pytest.raises(ServeError, match="leave one of them out"):
        check_snapshots(config)


def test_a_directory_that_is_not_there_yet_stops_no_start(tmp_path: Path) -> None:
    check_snapshots(replace(_config(tmp_path), snapshots=SnapshotSettings(url=str(tmp_path / "later" / "files"))))


def test_without_the_extra_a_bucket_is_a_sentence_that_names_it(tmp_path: Path) -> None:
    hidden = tmp_path / "obstore.py"
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'obstore'\", name='obstore')\n")
    command = [sys.executable, "-m", "tablegate.gateway.cli", "serve", "--contract", str(RATINGS)]
    command += ["--bootstrap", "127.0.0.1:1", "--data", str(tmp_path / "data"), "--snapshots", "s3://bucket/folder"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "needs obstore, which is not installed: pip install 'tablegate-gateway[snapshots]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
