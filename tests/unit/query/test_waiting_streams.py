"""What a stream holds whose client does not read on, or that waits for its turn."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.call.asker import Asker
from tests.kit.table.filled import LocalCall, catalogue_of, rating, ratings_table

STREAMS = 20
SERVICE = "/examples.ratings.v1.RatingsService"


@pytest.mark.tools
@pytest.mark.parametrize("method", ["ScanRatings", "SubscribeRatings"])
def test_a_stream_that_waits_holds_a_message_and_no_rows(method: str, tmp_path: Path) -> None:
    # In an overload a thousand scans wait. With the 500 rows of a message as they were read, each held 80 KB.
    store = LmdbStore(tmp_path)
    ratings_table(store, 1).put(rating(number) for number in range(3_000))
    handler = Asker(catalogue_of(), store, SERVICE, None).methods[f"{SERVICE}/{method}"]
    assert isinstance(handler, StreamMethod)

    async def wait_with_a_message(streams: list[AsyncIterator[bytes]]) -> int:
        for _ in range(STREAMS):
            stream = aiter(handler.handler(b"", LocalCall(None)))
            for _ in range(3):
                message = await anext(stream)
            streams.append(stream)
        return len(message)

    async def bytes_of_each() -> tuple[float, int]:
        await wait_with_a_message([])  # what is made once is there
        streams: list[AsyncIterator[bytes]] = []
        tracemalloc.start()
        try:
            message_bytes = await wait_with_a_message(streams)
            return tracemalloc.get_traced_memory()[0] / STREAMS, message_bytes
        finally:
            tracemalloc.stop()

    stream_bytes, message_bytes = asyncio.run(bytes_of_each())
    assert message_bytes > 10_000
    assert stream_bytes < message_bytes + 12_000
