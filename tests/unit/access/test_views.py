"""What principals see of tables of several tenants, of whichever gateway, query and protocol: a filter says what."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tests.kit.gateways_in_process.tenants import (
    NAMES,
    SEEN,
    STATES,
    Copied,
    NotFound,
    Row,
    World,
    credential,
    write_access,
)
from tests.kit.seeds import seeds

pytestmark = pytest.mark.tools

PAIRS = 100  # of a principal and a query, for each seed and table


def check_pair(world: World, key: str, gateway_id: str) -> None:
    """Ask something as somebody; what comes is what a filter lets through."""
    choice = world.choice
    kind = choice.choice(("get", "batch", "list", "list", "scan", "subscribe"))
    as_json = choice.random() < 0.3
    filters: dict[str, Any] = {"state": choice.choice(STATES)} if choice.random() < 0.5 else {}
    mask = choice.sample(world.columns, choice.randrange(1, 3)) if choice.random() < 0.3 else None
    masked: dict[str, Any] = {} if mask is None else {"read_mask": {"paths": mask}}
    where = (world.table, key, gateway_id, kind, as_json, filters, mask)

    def holds(row: Any) -> bool:
        return not filters or row.state == filters["state"]

    def seen(holds: Callable[[Any], bool] = lambda _: True) -> dict[tuple[Any, ...], Row]:
        return {row_key: world.masked(row, mask) for row_key, row in world.seen(key, holds).items()}

    def rows_of(rows: Any) -> dict[tuple[Any, ...], Row]:
        return {world.key_of(row): world.shown(row, "all") for row in rows}

    if kind == "get":
        asked = world.some_key()
        wanted = seen().get(tuple(asked.values()))
        found = None
        with contextlib.suppress(NotFound):
            answer = world.ask(key, gateway_id, f"Get{world.one}", as_json=as_json, **asked, **masked)
            found = world.shown(answer.row, "all")
        assert found == wanted, where
    elif kind == "batch":
        keys = [world.some_key() for _ in range(choice.randrange(1, 8))]
        results = world.ask(key, gateway_id, f"BatchGet{world.many}", as_json=as_json, keys=keys, **masked).results
        all_seen = seen()
        assert [world.shown(each.found, "all") if each.HasField("found") else None for each in results] == [
            all_seen.get(tuple(asked.values())) for asked in keys
        ], where
    elif kind == "list":
        size, order, token, found = choice.randrange(1, 9), choice.randrange(1, 3), "", []
        more: dict[str, Any] = {**masked}
        tenant = choice.choice(NAMES)
        if world.table == "invoices" and choice.random() < 0.3:
            more["tenant"] = tenant
        while True:
            answer = world.ask(
                key,
                gateway_id,
                f"List{world.many}",
                as_json=as_json,
                page_size=size,
                order=order,
                page_token=token,
                **more,
            )
            found += list(answer.rows)
            token = answer.next_page_token
            if not token:
                break
            check_token_of_others(world, key, f"List{world.many}", page_token=token, order=order, **more)
        wanted_rows = seen(lambda row: "tenant" not in more or row.tenant == tenant)
        assert rows_of(found) == wanted_rows, where
        keys_in_order = [tuple(str(part).encode() for part in world.key_of(row)[:-1]) for row in found]
        assert keys_in_order == sorted(keys_in_order, reverse=order == 2), where
        assert len(found) == len(wanted_rows), where
    elif kind == "scan":
        messages = world.cluster.stream(gateway_id, f"Scan{world.many}", metadata=credential(key), **filters, **masked)
        found = [row for message in messages for row in message.rows]
        assert rows_of(found) == seen(holds), where
        assert len(found) == len(seen(holds)), where
    else:
        stream = world.cluster.stream(
            gateway_id, f"Subscribe{world.many}", metadata=credential(key), **filters, **masked
        )
        found, token = [], ""
        with contextlib.closing(stream):  # type: ignore[type-var]
            for message in stream:
                found += [change.upsert for change in message.changes]
                token = message.progress.resume_token
                if message.progress.phase == 3:
                    break
        assert rows_of(found) == seen(holds), where


def check_token_of_others(world: World, key: str, method: str, **fields: Any) -> None:
    """Who sees something else is refused a token, and reads nothing in it."""
    other = world.choice.choice([each for each in SEEN if each != key])
    with pytest.raises(grpc.RpcError) as refused:
        world.ask(other, "", method, **fields)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "of another view" in refused.value.details()
    if key != "all":
        assert fields["page_token"].startswith("3.")


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    return write_access(tmp_path)


@pytest.mark.parametrize(
    "seed", [*seeds(10, in_check=1), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 50))]
)
@pytest.mark.parametrize("table", ["invoices", "tickets"])
def test_nobody_sees_rows_of_others(seed: int, table: str, access_file: Path) -> None:
    # Of half of the worlds a page looks at so few rows that most have to go on by their token.
    limits = QueryLimits(read_rows_max=3) if seed % 2 == 0 else DEFAULT_LIMITS
    world = World(table, access_file, random.Random(seed), limits)
    with world.cluster:
        for _ in range(120):
            world.put()
        for _ in range(PAIRS):
            check_pair(world, world.choice.choice(list(SEEN)), world.choice.choice(["a", "b", "c", ""]))


@pytest.mark.parametrize("seed", seeds(4, in_check=1))
def test_changes_reach_those_who_see_them(seed: int, access_file: Path) -> None:
    """Rows change hands under subscribers: each has what is his, and hears of no more."""
    world = World("tickets", access_file, random.Random(seed))
    with world.cluster, contextlib.ExitStack() as stack:
        for _ in range(40):
            world.put()
        copies = [Copied(world, key, gateway_id) for key in SEEN for gateway_id in ("a", "")]
        for copied in copies:
            stack.enter_context(copied)
        for _ in range(60):
            world.put()
        for copied in copies:
            copied.wait()
            assert copied.known_ids <= copied.ever_seen
