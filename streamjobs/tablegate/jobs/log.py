"""The job's own log: a JSON object a line on stdout. What Spark writes goes elsewhere."""

import json
import sys
from datetime import UTC, datetime


def log(event: str, **fields: object) -> None:
    """Write one line: the time, what happened, and its figures."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = json.dumps({"time": now, "event": event, **fields}, default=str)
    sys.stdout.write(f"{line}\n")  # at once, as several threads write
    sys.stdout.flush()
