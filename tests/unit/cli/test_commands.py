"""The commands against a server in this process: output, exit codes, sentences."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import Methods
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods, status_methods
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.status_pb2 import GetStatusResponse, PartitionStatus, TableStatus
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.http.certificates import Authority
from tests.kit.programs.machine import NoSmallDisk, small_disk
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import RATINGS, SIGNER, catalogue_of, rating, ratings_table
from tests.kit.table.foreign import FOREIGN

pytestmark = pytest.mark.tools

ROWS = 120


def _status() -> GetStatusResponse:
    return GetStatusResponse(
        kafka_reachable=True,
        tables=[TableStatus(table="ratings", serving=True, partitions=[PartitionStatus(partition=0, phase=2)])],
    )


@contextmanager
def _served(methods: Methods, tls: TlsFiles | None = None) -> Iterator[str]:
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", tls=tls)) as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A served ratings table with movies 0 … ROWS - 1."""
    with _served(_methods()) as served:
        yield served


def _methods() -> Methods:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put(rating(number) for number in range(ROWS))
    store.set_status(_status().SerializeToString())
    return {
        **query_methods(catalogue, store, SIGNER, Notifier()),
        **status_methods(store),
        **reflection_methods(catalogue),
    }


def _run(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words), env={"COLUMNS": "80"})


def _rows(result: Result) -> Sequence[dict[str, str]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_get_gives_the_row(address: str) -> None:
    [row] = _rows(_run("get", "ratings", "movie_id=7", "--address", address, "--json"))
    assert row["movie_id"] == "7"
    shown = _run("get", "ratings", "movie_id=7", "--address", address)
    assert shown.stdout.split()[:4] == ["movie_id", "average_rating", "rating_count", "update_time"]


def test_get_of_several_keys_keeps_their_order_and_leaves_out_the_missing(address: str) -> None:
    rows = _rows(_run("get", "ratings", "movie_id=9", "movie_id=-1", "movie_id=3", "--address", address, "--json"))
    assert [row["movie_id"] for row in rows] == ["9", "3"]


@pytest.mark.parametrize("limit", [1, 50, 100])
def test_range_gives_as_many_rows_as_asked(address: str, limit: int) -> None:
    rows = _rows(_run("range", "ratings", "movie_id_from=10", "--limit", str(limit), "--address", address, "--json"))
    assert [int(row["movie_id"]) for row in rows] == list(range(10, 10 + limit))


def test_range_goes_down(address: str) -> None:
    rows = _rows(_run("range", "ratings", "--limit", "3", "--descending", "--address", address, "--json"))
    assert [int(row["movie_id"]) for row in rows] == [ROWS - 1, ROWS - 2, ROWS - 3]


def test_scan_gives_every_row_or_as_many_as_asked(address: str) -> None:
    assert len(_rows(_run("scan", "ratings", "--address", address, "--json"))) == ROWS
    assert len(_rows(_run("scan", "ratings", "--limit", "5", "--address", address, "--json"))) == 5


def test_scan_writes_files_for_other_programs(address: str, tmp_path: Path) -> None:
    shown = _rows(_run("scan", "ratings", "--address", address, "--json"))
    for name in ("r.csv", "r.jsonl", "r.arrow", "r.parquet"):
        written = _run("scan", "ratings", "-o", str(tmp_path / name), "--address", address)
        assert (written.exit_code, written.stdout) == (0, ""), written.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.arrow", "r.csv", "r.jsonl", "r.parquet"]
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == shown
    lines = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert lines == [{name: str(value) for name, value in row.items()} for row in shown]
    parquet = pq.read_table(tmp_path / "r.parquet")
    assert pa.ipc.open_stream(tmp_path / "r.arrow").read_all() == parquet
    assert parquet["movie_id"].to_pylist() == [int(row["movie_id"]) for row in shown]
    assert parquet["average_rating"].to_pylist() == [row["average_rating"] for row in shown]


@pytest.mark.parametrize("form", ["csv", "json", "arrow", "parquet"])
def test_scan_writes_to_a_pipe(address: str, form: str) -> None:
    words = [sys.executable, "-m", "tablegate.gateway.cli", "scan", "ratings", "--limit", "3", "--address", address]
    written = subprocess.run([*words, "--format", form], capture_output=True, check=True).stdout
    match form:
        case "csv":
            assert len(written.splitlines()) == 4
        case "json":
            assert [json.loads(line)["rating_count"] for line in written.splitlines()] != []
        case "arrow":
            assert pa.ipc.open_stream(written).read_all().num_rows == 3
        case _:
            assert pq.read_table(pa.BufferReader(written)).num_rows == 3


def test_scan_of_no_rows_writes_the_columns(address: str, tmp_path: Path) -> None:
    words = ["scan", "ratings", "min_rating_count=1000000000", "--address", address]
    for name in ("none.csv", "none.parquet"):
        assert _run(*words, "-o", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / "none.csv").read_text() == "movie_id,average_rating,rating_count,update_time\n"
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_scan_that_fails_leaves_the_file_as_it_was(address: str, tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text("old")
    assert _run("scan", "ratings", "min_rating_count=many", "--address", address, "-o", str(file)).exit_code == 1
    assert _run("scan", "ratings", "--address", "127.0.0.1:1", "-o", str(file)).exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["ratings.csv"]
    assert file.read_text() == "old"


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.jsonl", "ratings.arrow", "ratings.parquet"])
def test_a_scan_onto_a_full_disk_leaves_the_file_as_it_was(address: str, tmp_path: Path, name: str) -> None:
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(tmp_path / "small", 1))
        except NoSmallDisk as error:
            pytest.skip(f"no file system can be mounted here: {error}")
        file = disk.directory / name
        file.write_text("old")
        disk.fill()
        command = [sys.executable, "-m", "tablegate.gateway.cli", "scan", "ratings", "--address", address]
        run = subprocess.run([*command, "-o", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode, run.stdout) == (1, "")
        assert run.stderr.splitlines() == [
            "error: there is no room on the disk, and what was to be written is incomplete: make room, try again"
        ]
        assert {path.name for path in disk.directory.iterdir()} == {name, "ballast"}
        assert file.read_text() == "old"


def test_count_gives_the_number(address: str) -> None:
    assert _run("count", "ratings", "--address", address).stdout == f"{ROWS}\n"
    assert _rows(_run("count", "ratings", "min_average_rating=1000", "--address", address, "--json")) == [{"count": 0}]


@pytest.mark.parametrize("command", [["get", "movie_id=7"], ["get", "movie_id=7", "movie_id=8"], ["range"], ["scan"]])
def test_fields_that_were_not_asked_for_are_not_shown(address: str, command: list[str]) -> None:
    words = [command[0], "ratings", *command[1:], "--address", address]
    for name in ("rating_count", "ratingCount", "rating_count, rating_count"):
        rows = _rows(_run(*words, "--fields", name, "--json"))
        assert {tuple(row) for row in rows} == {("movie_id", "rating_count")}
    assert _run(*words, "--fields", "rating_count").stdout.split()[:3] == [
        "movie_id",
        "rating_count",
        rows[0]["movie_id"],
    ]
    [times] = _rows(_run("get", "ratings", "movie_id=7", "--fields", "update_time", "--address", address, "--json"))
    assert [*times] == ["movie_id", "update_time"]
    assert len(_rows(_run(*words, "--fields", "*", "--json"))[0]) == 4


def test_files_have_the_fields_that_were_asked_for(address: str, tmp_path: Path) -> None:
    for name in ("r.csv", "r.parquet", "r.arrow"):
        words = ["scan", "ratings", "--fields", "rating_count", "-o", str(tmp_path / name), "--address", address]
        assert _run(*words).exit_code == 0
    assert (tmp_path / "r.csv").read_text().startswith("movie_id,rating_count\n")
    parquet = pq.read_table(tmp_path / "r.parquet")
    assert parquet.column_names == ["movie_id", "rating_count"]
    assert pa.ipc.open_stream(tmp_path / "r.arrow").read_all() == parquet


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["get", "ratings", "movie_id=1", "--fields", "mean"],
            'field "--fields": names "mean", and Rating has no such',
        ),
        (["scan", "ratings", "--fields", ""], 'field "--fields": names a path at place 0'),
        (["get", "ratings", "movie_id=100000"], "NOT_FOUND (ROW_NOT_FOUND)"),
        (["get", "rating", "movie_id=1"], 'this gateway has no table "rating": it has ratings'),
        (["get", "ratings", "movie=1"], 'GetRatingRequest has no field "movie"'),
        (["get", "ratings"], '"movie_id" of the key of table "ratings" is missing: add movie_id=VALUE'),
        (["get", "ratings", "movie_id"], '"movie_id" is not an argument: write field=value'),
        (["get", "ratings", "movie_id=many"], "movie_id"),
        (["range", "ratings", "page_token=x"], "INVALID_ARGUMENT (INVALID_PAGE_TOKEN)"),
        (["scan", "ratings", "scan_options={"], 'field "scan_options"'),
        (["scan", "ratings", "-o", "ratings.xlsx"], 'suffix of "ratings.xlsx" names no format: add --format json, csv'),
        (["scan", "ratings", "-o", "no/r.csv"], '"no/r.csv" cannot be written (No such file or directory): give'),
        (["scan", "ratings", "-o", "r.csv", "--format", "table"], "a table is for the terminal"),
        (["scan", "ratings", "-o", "/dev/null", "--format", "csv"], '"/dev/null" is no file: give another --output'),
    ],
)
def test_a_wrong_question_gets_one_sentence(address: str, words: list[str], sentence: str) -> None:
    result = _run(*words, "--address", address)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_gateway_gets_one_sentence() -> None:
    for command in (["get", "ratings", "movie_id=1"], ["tables"], ["status"]):
        result = _run(*command, "--address", "127.0.0.1:1")
        assert result.exit_code == 1
        assert "no gateway answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", ":1", "127.0.0.1:0", "127.0.0.1:65537", "http://here:1/x", "a b:1"]
)
def test_an_address_that_is_none_gets_one_sentence(address: str) -> None:
    for command in (["status"], ["explain", "x.Y/Z"]):
        result = _run(*command, "--address", address)
        assert result.exit_code == 1
        assert result.stderr == f'error: "{address}" is not an address: give HOST:PORT, or https://HOST:PORT for TLS\n'


def test_an_address_may_be_a_url(address: str) -> None:
    assert _run("status", "--address", f"http://{address}/").exit_code == 0


def test_tables_and_status(address: str) -> None:
    [table] = _rows(_run("tables", "--address", address, "--json"))
    assert table["key"] == ["movie_id int64"]
    assert table["serving"] is True
    assert "ScanRatings" in _run("tables", "--address", address).stdout
    [status] = _rows(_run("status", "--address", address, "--json"))
    assert status["kafka_reachable"] is True
    assert "live" in _run("status", "--address", address).stdout


def test_check_shows_the_tables_or_every_problem(tmp_path: Path) -> None:
    assert "examples.ratings.v1.Rating, key (movie_id int64)" in _run("check", str(RATINGS)).stdout
    foreign = _run("check", str(FOREIGN)).stdout
    assert "shop.others.v1.Line, key (order_id string, line_number int32)" in foreign
    directory = tmp_path / "examples/ratings/v1"
    directory.mkdir(parents=True)
    wrong = RATINGS.read_text().replace('key: "movie_id"', 'key: "average_rating"')
    (directory / "ratings.proto").write_text(wrong)
    result = _run("check", str(directory / "ratings.proto"))
    assert result.exit_code == 1
    assert 'message Rating, field "average_rating"' in result.stderr
    assert _run("check", str(tmp_path / "none.proto")).exit_code == 1


def test_check_shows_windows_and_how_long_their_rows_are_answered() -> None:
    shown = _run("check", str(RATINGS.parents[2] / "actions/v1/actions.proto")).stdout
    assert "key (browser string, window_start Timestamp)" in shown
    assert "windows of 5 s, one each 2 s, answered until 1 d after their end" in shown


def test_a_gateway_without_reflection_says_how_to_get_it() -> None:
    with _served(status_methods(MemoryStore())) as address:
        result = _run("get", "ratings", "movie_id=1", "--address", address)
    assert result.exit_code == 1
    assert "start it with --reflection" in result.stderr


def test_a_gateway_with_tls_is_asked_over_https(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    server, client = ours.issue(), ours.issue("client")
    get = ("get", "ratings", "movie_id=7", "--json", "--address")
    with _served(_methods(), TlsFiles(server.certificate, server.key, ours.certificate)) as address:
        port = address.rpartition(":")[2]
        https = f"https://localhost:{port}"
        shown = ("--cert", str(client.certificate), "--key", str(client.key))
        [row] = _rows(_run("--ca", str(ours.certificate), *shown, *get, https))
        assert row["movie_id"] == "7"
        for words in (
            (*get, address),  # plaintext
            ("--ca", str(foreign.certificate), *shown, *get, https),
            ("--ca", str(ours.certificate), *get, https),  # no certificate
        ):
            result = _run(*words)
            assert result.exit_code == 1, words
            assert result.stderr.startswith("error: ")
    assert "give both --cert and --key" in _run("--cert", "a.pem", *get, https).stderr
    assert "check the path" in _run("--ca", str(tmp_path / "none.pem"), *get, https).stderr


def test_output_that_a_full_disk_refuses_is_one_sentence() -> None:
    command = [sys.executable, "-m", "tablegate.gateway.cli", "--help"]
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "error: there is no room on the disk, and what was to be written is incomplete: make room, try again"
    ]


@pytest.mark.parametrize("topic", ["", ":2", "orders:", "orders:0", "orders:two", "orders:2:3", "orders:-1"])
def test_topic_of_the_broker_that_cannot_be_read(topic: str) -> None:
    refused = _run("broker", "--topic", topic)
    assert refused.exit_code == 1
    assert refused.stderr == f'error: --topic "{topic}" is not NAME or NAME:PARTITIONS, such as orders:2\n'


@pytest.mark.parametrize(
    ("module", "option"), [("tablegate.gateway.cli", "--version"), ("tablegate.jobs.running", "--help")]
)
def test_a_program_that_crashes_in_c_code_says_what_ran(module: str, option: str) -> None:
    program = f"""
import os, runpy, signal, sys
sys.argv = ["program", "{option}"]
try:
    runpy.run_module("{module}", run_name="__main__")
except SystemExit:
    os.kill(os.getpid(), signal.SIGSEGV)
"""
    crashed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert crashed.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in crashed.stderr


@pytest.mark.parametrize("others", [[], ["--contract", "b.proto"]])
def test_serve_says_how_a_contract_is_given(others: list[str]) -> None:
    result = _run("serve", "a.proto", *others)
    assert result.exit_code == 2
    assert "Contracts are given by an option: tablegate serve --contract a.proto" in result.stderr


def test_an_interrupt_while_commands_are_imported_says_nothing() -> None:
    program = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "tablegate.gateway.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from tablegate.gateway.cli import main
main()
"""
    interrupted = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (interrupted.returncode, interrupted.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_who_starts_it_may_have_closed_what_it_prints_to(closed: list[int]) -> None:
    command = f"exec {sys.executable} -m tablegate.gateway.cli --version {' '.join(f'{each}>&-' for each in closed)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tablegate ") == (1 not in closed)


def test_a_home_that_cannot_be_written_to_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked = {"HOME": str(tmp_path / "file" / "home"), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "tablegate.gateway.cli", "--install-completion", "bash"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f'error: "{tmp_path}/file/' in done.stderr
    assert done.stderr.count("\n") == 1
