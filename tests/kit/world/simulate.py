"""One seed, from nothing to the end; `python -m tests.kit.world.simulate SEED` tells it as a story."""

import argparse
import gc
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.kit.replication.replicator import FakeClock
from tests.kit.world.checker import GuaranteeBroken
from tests.kit.world.faults import ENABLED, FAULTS, Fault
from tests.kit.world.loop import still_time
from tests.kit.world.world import STEPS_UP, Story, World, with_story

SHARED_MEMORY = Path("/dev/shm")
LMDB_EVERY = 8  # seeds: over a file a seed takes a third longer than in memory
STEPS = 12  # moments between two events
EVENTS = (6, 11)
MORE_TIMES = 4  # a kind that is asked for is drawn so much more often


def simulate(seed: int, faults: Sequence[Fault] = ENABLED, *, story: Story | None = None) -> Counter[str]:
    """Run a seed; return how often each kind of fault bit, and what else has to happen. Raise `GuaranteeBroken`."""
    story = story or Story()
    is_on_disk = seed % LMDB_EVERY == 0
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # thousands of restarts, each of which is logged
    try:
        if not is_on_disk:
            return _simulate(seed, faults, story, None)
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as directory:
            return _simulate(seed, faults, story, Path(directory))
    finally:
        logging.disable(level)
        if gc.isenabled():
            gc.collect(0)  # the world that is over, whole: later it would be looked through more than once


def _simulate(seed: int, faults: Sequence[Fault], story: Story, directory: Path | None) -> Counter[str]:
    chance = random.Random(f"{seed}-faults")
    clock = FakeClock()
    with still_time(lambda: clock.passed_s, seed) as loop:
        world = World(
            seed,
            loop,
            clock,
            story,
            gateways=chance.choice([2, 3, 3]),
            partitions=chance.choice([2, 3, 4]),
            replicas=chance.choice([1, 2, 2]),
            directory=directory,
        )
        try:
            for gateway in world.gateways.values():
                gateway.start()
            world.run(STEPS_UP)
            for _ in range(chance.randint(*EVENTS)):
                _happen(world, chance, faults)
                world.run(STEPS)
            world.settle()
        except GuaranteeBroken as broken:
            raise with_story(broken, seed, story) from None
        finally:
            world.close()
    for (_, direction, result), count in world.measures.snapshots.items():
        world.bites[f"snapshot file {direction}, {result}"] += count
    return world.bites


def _happen(world: World, chance: random.Random, faults: Sequence[Fault]) -> None:
    """Let something happen; of what cannot bite now another is drawn."""
    for _ in range(5):
        [fault] = chance.choices(faults, weights=[fault.weight for fault in faults])
        what = fault.happen(world, chance)
        if what is not None:
            world.bites[type(fault).__name__] += 1
            world.record(f"*** {what}")
            return


def main(arguments: Sequence[str]) -> int:
    """Tell a seed; return 1 where it broke a guarantee."""
    parser = argparse.ArgumentParser(prog="make simulate", description="tell one seed of the simulator as a story")
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--with", dest="more", action="append", default=[], help="a kind of fault that is to happen more often"
    )
    parsed = parser.parse_args(arguments)
    known = {type(fault).__name__: fault for fault in FAULTS}
    unknown = sorted(set(parsed.more) - set(known))
    if unknown:
        parser.error(f'no fault is called "{unknown[0]}"; there are {", ".join(sorted(known))}')
    story = Story(keeps_all=True)
    faults = [*ENABLED, *(known[name] for name in parsed.more for _ in range(MORE_TIMES))]
    try:
        bites = simulate(parsed.seed, faults, story=story)
    except GuaranteeBroken as broken:
        print("\n".join(story.lines))
        print(f"\nbroken: {broken.guarantee.value}: {broken.text.splitlines()[0]}")
        return 1
    print("\n".join(story.lines))
    print(f"\nall guarantees held; how often each thing happened: {dict(sorted(bites.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
