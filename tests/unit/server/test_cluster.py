"""What a gateway is told to be one of a cluster."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer

from tablegate.gateway.cli.operating import parse_replicas
from tablegate.gateway.cluster.membership import REPLICAS, Membership
from tablegate.gateway.server.child import ChildConfig
from tablegate.gateway.server.config import ServeConfig, ServeError
from tablegate.gateway.server.preflight import check_cluster, membership_of
from tests.kit.table.filled import RATINGS, catalogue_of


def config(data: Path, **more: Any) -> ServeConfig:
    told = {"advertise": "gateway-1:50051", "token_key_file": data / "keys", **more}
    return ServeConfig(contracts=(RATINGS,), bootstrap="127.0.0.1:1", data=data, **told)


def test_a_gateway_that_advertises_nothing_stands_alone(tmp_path: Path) -> None:
    alone = ServeConfig(contracts=(RATINGS,), bootstrap="127.0.0.1:1", data=tmp_path)
    check_cluster(alone, catalogue_of())
    assert membership_of(alone) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"advertise": None, "zone": "a"}, "--zone .* give --advertise"),
        ({"advertise": None, "replicas": 0}, "--replicas .* give --advertise"),
        ({"advertise": None, "replicas_of": {"ratings": 1}}, "--replicas .* give --advertise"),
        ({"advertise": None, "gateway_id": "a"}, "--gateway-id.* give --advertise"),
        ({"advertise": "gateway-1"}, 'advertise "gateway-1" is no address; give host:port'),
        ({"advertise": "gateway-1:0"}, "is no address"),
        ({"advertise": "gateway-1:70000"}, "is no address"),
        ({"advertise": "http://gateway-1:7000"}, "is no address"),
        ({"advertise": "ann@gateway-1:7000"}, "is no address"),
        ({"advertise": "gateway-1/x:7000"}, "is no address"),
        ({"advertise": "0.0.0.0:50051"}, 'advertise "0.0.0.0:50051" leads every gateway to itself; give the name'),
        ({"advertise": "[0::0]:50051"}, "leads every gateway to itself"),
        ({"zone": "x" * 254}, "--zone .* is no name; use at most 253"),
        ({"zone": "a\nb"}, r"--zone 'a\\nb' is no name"),
        ({"zone": " "}, "--zone ' ' is no name"),
        ({"replicas": 1_001}, "--replicas 1001 is more than 1000; give 0 for all"),
        ({"replicas_of": {"ratings": 2**31}}, "--replicas 2147483648 is more than 1000"),
        ({"token_key_file": None}, "give --token-key a file that is the same on all"),
        ({"gateway_id": "a b"}, '--gateway-id "a b" is no name'),
        ({"gateway_id": "x" * 65}, "is no name"),
        ({"replicas_of": {"rating": 3}}, '--replicas rating=3: the contracts have no table "rating"'),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ServeError, match=says):
        check_cluster(config(tmp_path, **more), catalogue_of())


@pytest.mark.parametrize("advertise", ["gateway-1.example:1", "10.0.0.7:50051", "[::1]:65535"])
def test_addresses(tmp_path: Path, advertise: str) -> None:
    check_cluster(config(tmp_path, advertise=advertise), catalogue_of())


def test_a_made_up_name_stays_the_same(tmp_path: Path) -> None:
    first, again = membership_of(config(tmp_path)), membership_of(config(tmp_path))
    assert first is not None
    assert first == again
    assert first.gateway_id.startswith("gateway-")
    other = membership_of(config(tmp_path, gateway_id="mine"))
    assert other is not None
    assert other.gateway_id == "mine"
    (tmp_path / "gateway.id").write_text("no name\n")
    with pytest.raises(ServeError, match="has no gateway's name in it; remove it"):
        membership_of(config(tmp_path))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that nobody closed
def test_a_name_is_made_also_where_a_start_was_cut_short(tmp_path: Path) -> None:
    """A start is ended at each line of what makes the name, in turn."""
    for line in range(1_000):
        (tmp_path / "gateway.id").unlink(missing_ok=True)
        steps = count()

        def end(frame: FrameType, event: str, _: object, line: int = line, steps: Iterator[int] = steps) -> Any:
            if Path(frame.f_code.co_filename).stem not in ("preflight", "pathlib"):
                return None
            if event == "line" and next(steps) == line:
                raise KeyboardInterrupt
            return end

        before = sys.gettrace()
        sys.settrace(end)
        try:
            membership_of(config(tmp_path))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert membership_of(config(tmp_path)) is not None, line
    else:
        raise AssertionError("it does not end")
    assert line > 20


def test_replicas_of_all_and_of_certain_tables(tmp_path: Path) -> None:
    usual = membership_of(config(tmp_path))
    assert usual is not None
    assert usual.replicas_wanted("ratings") == REPLICAS
    of_all, of_tables = parse_replicas(["3", "ratings=0", "actions=1"])
    told = membership_of(config(tmp_path, replicas=of_all, replicas_of=of_tables))
    assert told is not None
    assert [told.replicas_wanted(name) for name in ("movies", "ratings", "actions")] == [3, 0, 1]


@pytest.mark.parametrize("text", ["", "two", "ratings=", "=2", "-1", "ratings=-1", "2=x", "２"])
def test_replicas_that_are_no_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        parse_replicas([text])
    assert f'--replicas "{text}" is not a number of replicas' in capsys.readouterr().err


def test_the_replicator_is_told_all_of_it(tmp_path: Path) -> None:
    membership = Membership(gateway_id="a", endpoint="a:1", zone="z", replicas=0, replicas_of={"ratings": 3}, topic="t")
    told = ChildConfig(
        name="replicator",
        parent=1,
        contract="",
        store="",
        address="",
        token_keys=(),
        reflection=False,
        tls=None,
        cors_origins=(),
        drain_s=1.0,
        streams=100,
        bootstrap="",
        tables_topic="tables",
        log_file=None,
        membership=membership,
    )
    assert ChildConfig.from_json(told.to_json()) == told
