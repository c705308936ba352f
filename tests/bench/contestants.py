"""Who takes part, running at the same time: a gateway, the peer, and the floor, each of them with TLS where it can."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.bench.figures import Figures
from tests.bench.load import GET_PATH, Generators, Load, Target, say
from tests.bench.stack import GatewayProcess, Stack, request_bytes
from tests.kit.http.certificates import Authority


@dataclass(frozen=True)
class Bench:
    """What every measurement needs. `rows`: of the table, with the movies 1 … rows."""

    stack: Stack
    generators: Generators
    figures: Figures
    rows: int
    seconds: float
    repeat: int
    warm_s: float

    def in_turns(self, targets: list[Target], load: Callable[[Target], Load]) -> dict[str, list[Load]]:
        """Load one target after the other, and all of them again, so that none has the quiet minutes of the machine."""
        loads: dict[str, list[Load]] = {target.who: [] for target in targets}
        for _ in range(self.repeat):
            for target in targets:
                loads[target.who].append(load(target))
        return loads

    def record(self, name: str, loads: dict[str, list[Load]], *, of: str = "request", times: int = 1) -> None:
        """Record rate and server CPU of loads; each call counts for `times` of what is counted."""
        for who, each in loads.items():
            load = each[0].generator
            rates = [one.per_second * times for one in each]
            self.figures.record(name, who, rates, f"{of}s/s", load=load)
        for who, each in loads.items():
            costs = [one.server_cpu_us / times for one in each]
            self.figures.record(f"{name}, server CPU", who, costs, f"µs a {of}", load=each[0].generator)


@contextmanager
def contestants(
    bench: Bench, gateway: GatewayProcess, peer: Target | None
) -> Iterator[tuple[list[Target], list[Target]]]:
    """Give those that speak plaintext, and those that speak TLS."""
    plain = [Target("tablegate", gateway.address, gateway.pid)] + ([peer] if peer else [])
    tls: list[Target] = []
    with ExitStack() as running:
        if binary := bench.generators.go:
            directory = bench.stack.directory
            (answer := directory / "answer").write_bytes(_answer(gateway.address, bench.rows // 2))
            plain.append(running.enter_context(_floor(binary, answer, None)))
            authority = Authority(directory)
            say("starting a gateway with TLS")
            secure = running.enter_context(bench.stack.gateway(authority=authority))
            tls = [Target("tablegate", secure.address, secure.pid, authority.certificate)]
            tls.append(running.enter_context(_floor(binary, answer, authority)))
        else:
            say("no Go: no floor, no TLS, and load from Python, which takes the server's cores")
        yield plain, tls


def _answer(address: str, movie: int) -> bytes:
    """Return what the gateway answers to a Get: the floor's answer is as large."""
    with grpc.insecure_channel(address) as channel:
        answer = bytes(channel.unary_unary(GET_PATH)(request_bytes(movie), timeout=5))
    if not answer[2:].startswith(request_bytes(movie)):  # its row begins with its key, as the request does
        raise RuntimeError(f"{address} answers with another row than movie {movie}")
    return answer


@contextmanager
def _floor(binary: Path, answer: Path, authority: Authority | None) -> Iterator[Target]:
    """Run a grpc-go server that answers a Get always the same."""
    words = [str(binary), "floor", "--path", GET_PATH, "--answer", str(answer)]
    if authority:
        pair = authority.issue("floor")
        words += ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            address = json.loads(process.stdout.readline())["address"]
            yield Target("floor", address, process.pid, authority.certificate if authority else None)
        finally:
            process.kill()
