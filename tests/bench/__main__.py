"""`make bench`: what tablegate does, measured, beside the Kafka Streams peer; a table on the screen and JSON in a file.

Figures are of this machine at this hour: compare those of one run, as ratios.
"""

import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.bench import latency, peer, reads

OUT = Console(highlight=False)


def noise() -> float:
    """Return how much longer the slowest of 20 equal pieces of work took than the fastest, as a share."""
    took = []
    for _ in range(20):
        start = time.perf_counter()
        sum(range(2_000_000))
        took.append(time.perf_counter() - start)
    return max(took) / min(took) - 1


def main(
    peer_dir: Annotated[Path | None, typer.Option("--peer", help="Directory of the peer's sources (Maven).")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the table that is read and restored.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="Length of one load.")] = 10.0,
    probes: Annotated[int, typer.Option(help="Events whose way to a Get is timed.")] = 300,
    warm: Annotated[float, typer.Option(help="Seconds of load before the peer is measured.")] = 40.0,
    only: Annotated[str, typer.Option(help="reads, latency or all.")] = "all",
    out: Annotated[Path, typer.Option(help="File for the figures.")] = Path("bench-results/bench.json"),
) -> None:
    """Measure tablegate, and the peer where its directory is named and Maven is there."""
    with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as directory:
        work = Path(directory)
        built = peer.build(peer_dir.resolve(), work) if peer_dir and peer.can_build() else None
        if built is None:
            OUT.print("no peer: name its directory with --peer, and have Maven")
        figures: dict[str, dict[str, float | str]] = {}
        if only in ("all", "reads"):
            figures |= reads.measure(work, built, rows=rows, seconds=seconds, warm_s=warm)
        if only in ("all", "latency"):
            figures |= latency.measure(work, built, probes=probes)
    report = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "noise": round(noise(), 3),
        "rows": rows,
        "figures": figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    show(report)
    OUT.print(f"written to {out}")


def show(report: dict[str, object]) -> None:
    """Print the figures: a row each, ours and the peer's beside each other."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("figure", "tablegate", "peer", "unit"):
        table.add_column(name, justify="left" if name in ("figure", "unit") else "right")
    for name, values in report["figures"].items():  # type: ignore[attr-defined]
        cells = [f"{values[who]:,.1f}" if who in values else "" for who in ("tablegate", "peer")]
        table.add_row(name, *cells, str(values["unit"]))
    OUT.print(f"{report['machine']}; equal work took up to {report['noise']:.0%} longer")
    OUT.print(table)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
