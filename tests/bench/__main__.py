"""`make bench`: what tablegate does, measured beside the Kafka Streams peer and a grpc-go server that does nothing.

A table on the screen, figures in JSON, and a picture. Figures are of this machine at this hour: compare those of one
run, as ratios.
"""

import json
import os
import platform
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench import cluster, indexes, latency, overload, peer, picture, placement, serving, throughput
from tests.bench.figures import Figures
from tests.bench.gets import hot_figure
from tests.bench.serving import Part

OUT = Console(highlight=False, width=150)  # no narrower: the lines are of numbers that stand below each other


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
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the table that is read and restored.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="Length of one load.")] = 4.0,
    repeat: Annotated[int, typer.Option(min=1, help="Loads of each kind; their median counts.")] = 5,
    probes: Annotated[int, typer.Option(help="Events whose way to a Get is timed.")] = 300,
    records: Annotated[int, typer.Option(min=10_000, help="Records of the backlog that jobs work off.")] = 1_000_000,
    overload_seconds: Annotated[float, typer.Option(help="Length of the overload.")] = overload.SECONDS,
    table: Annotated[list[str] | None, typer.Option(help="Tables whose jobs work it off; all without it.")] = None,
    warm: Annotated[float, typer.Option(help="Seconds of load before the peer is measured.")] = 40.0,
    only: Annotated[Part | None, typer.Option(help="The part to measure; all without it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for bench.json and bench.svg: docs, or bench-results for a part.")
    ] = None,
) -> None:
    """Measure tablegate, the peer where its directory is named and Maven is there, and the floor where Go is."""
    out = out or Path("bench-results" if only else "docs")
    parts = {only} if only else set(Part)
    noises = [noise()]
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as directory:
        work = Path(directory)
        built = peer.build(peer_dir.resolve(), work) if peer_dir and peer.can_build() else None
        if built is None:
            OUT.print("no peer: name its directory with --peer, and have Maven")
        if parts - {Part.LATENCY, Part.THROUGHPUT, Part.PLACEMENT, Part.INDEXES, Part.CLUSTER, Part.OVERLOAD}:
            serving.measure(work, built, figures, parts=parts, rows=rows, seconds=seconds, repeat=repeat, warm_s=warm)
        if Part.LATENCY in parts:
            latency.measure(work, built, figures, probes=probes)
        if Part.THROUGHPUT in parts:
            throughput.measure(work, built, figures, names=table or (), records=records, repeat=repeat)
        if Part.PLACEMENT in parts:
            placement.measure(figures, repeat=repeat)
        if Part.INDEXES in parts:
            indexes.measure(work, figures, repeat=repeat)
        if Part.CLUSTER in parts:
            cluster.measure(work, figures, seconds=seconds, repeat=repeat)
        if Part.OVERLOAD in parts:
            overload.measure(work, figures, seconds=overload_seconds)
    noises.append(noise())
    report = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "noise": round(max(noises), 3),
        "rows": rows,
        "seconds": seconds,
        "repeat": repeat,
        "figures": {name: asdict(figure) for name, figure in figures.items()},
    }
    OUT.print(f"{report['machine']}; equal work took up to {report['noise']:.0%} longer")
    OUT.print("median (smallest..largest); server CPU is that of all its processes")
    OUT.print(figures.table())
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if hot_figure(1) in figures:
        (out / "bench.svg").write_text(picture.draw(figures))
    OUT.print(f"written to {out}")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
