"""What a row costs as JSON, in µs of CPU: `python -m tests.bench.json_rows`.

Of a scan's message with 500 flat rows, and of one row with messages and maps in it; by the gateway's codec and by
protobuf's json_format. The smallest of several runs counts.
"""

import json
import time
from collections.abc import Callable
from functools import partial

from google.protobuf import json_format
from google.protobuf.message import Message

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.http.json_codec import JsonCodec
from tests.bench.nested import CONTRACT, order
from tests.kit.table.filled import catalogue_of, rating

ROWS, RUNS = 500, 9
_TIME_US = 1_700_000_000_123_000


def _scanned() -> tuple[JsonCodec, Message]:
    codec = JsonCodec([catalogue_of().pool])
    message = codec.types("/examples.ratings.v1.RatingsService/ScanRatings").response_class()
    for number in range(ROWS):
        row = rating(100_000 + number, average=number / 7 + 0.1, count=number + 1)
        row.update_time.FromMicroseconds(_TIME_US + number)
        message.ratings.add().MergeFromString(row.SerializeToString())  # type: ignore[attr-defined]
    return codec, message


def _nested() -> tuple[JsonCodec, Message]:
    catalogue = bind(load_descriptors(CONTRACT))
    values = order(1_000, _TIME_US)
    items = values.pop("items")
    values.pop("update_time")
    row = catalogue.tables["orders"].row_class(**values)
    for item in items:
        row.items.add(sku=item["sku"], pieces=item["pieces"]).price.units = 7  # type: ignore[attr-defined]
    row.update_time.FromMicroseconds(_TIME_US)  # type: ignore[attr-defined]
    return JsonCodec([catalogue.pool]), row


def _smallest_us(work: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(RUNS):
        begun = time.process_time()
        for _ in range(times):
            work()
        took.append(time.process_time() - begun)
    return min(took) / times * 1e6


def main() -> None:
    """Measure, and print a line for each."""
    for what, (codec, message), rows in (("flat", _scanned(), ROWS), ("of 7 messages, 2 maps", _nested(), 1)):
        data, cls, times = message.SerializeToString(), type(message), 5_000 // rows
        text_bytes = len(codec.to_json(cls, data)) // rows
        ours = _smallest_us(partial(codec.to_json, cls, data), times) / rows
        theirs = _smallest_us(partial(_by_json_format, cls, data), times) / rows
        print(f"a row {what}: {ours:.2f} µs; by json_format {theirs:.2f} µs; {text_bytes} bytes")


def _by_json_format(cls: type[Message], data: bytes) -> str:
    return json.dumps(json_format.MessageToDict(cls.FromString(data)))


if __name__ == "__main__":
    main()
