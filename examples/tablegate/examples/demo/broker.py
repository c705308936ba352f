"""`tablegate broker`: a Kafka of one's own on this machine, with the topics that a project reads."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tablegate.examples.demo.console import print_line, progress_bars
from tablegate.examples.demo.kafka import Broker
from tablegate.examples.demo.launch import DemoError, Steps, end_by_signals, start_kafka
from tablegate.examples.samples import create_topic
from tablegate.jobs.jars import SetupError

POLL_S = 0.5


def run_broker(data: Path, *, port: int, topics: Sequence[tuple[str, int]]) -> None:
    """Start Kafka on its data in `data`, make the topics (name, partitions) that are missing, and stay until Ctrl-C.

    Raise `DemoError`.
    """
    end_by_signals()
    broker = Broker(data, port)
    try:
        with ExitStack() as stack:
            with progress_bars(transient=True) as progress:
                start_kafka(stack, broker, Steps(progress), jars_of=["broker"])
            for name, partitions in topics:
                is_new = create_topic(broker.bootstrap, name, partitions)
                print_line(f"topic {name}:{partitions} {'is made' if is_new else 'was there'}", markup=False)
            print_line(f"Kafka listens on {broker.bootstrap}; its data is in {data}. Ctrl-C stops it.", markup=False)
            while broker.running:
                time.sleep(POLL_S)
            raise DemoError(f"Kafka has ended by itself: {broker.log_file} says why; start it again")
    except SetupError as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        print_line(f"stopped; the next start finds its data in {data}", markup=False)
