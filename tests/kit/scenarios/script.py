"""Scenarios as text: commands, `----`, and what they print.

After etcd's datadriven tests (etcd-io/raft, testdata). A file is a row of blocks, with an empty line between two:

    # why this happens
    job 1 put 0..19
    tick 500ms
    ----
    +0.1s a: generation 1: 0,1 LIVE

The lines above `----` are commands, one a line; those below are what all of them printed. Lines that begin with "#" are
for the reader. `run` does the commands again; `rewritten` gives the file with what was printed this time, which
`pytest --rewrite-scenarios` writes: look at its diff before you commit it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

SEPARATOR = "----"


@dataclass(frozen=True)
class Command:
    """A line: words, and options that were written as name=value."""

    line: int
    text: str
    words: Sequence[str]
    options: dict[str, str]

    def fail(self, why: str) -> NoReturn:
        """Raise the error of a command that nobody knows."""
        raise ValueError(f'line {self.line}: "{self.text}": {why}')


@dataclass
class Block:
    """Commands and what they printed."""

    comments: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def with_output(self, output: list[str]) -> str:
        """Return the block's text with another output."""
        return "\n".join([*self.comments, *(command.text for command in self.commands), SEPARATOR, *output]) + "\n"


def command_of(line: int, text: str) -> Command:
    words, options = [], {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals:
            options[name] = value
        else:
            words.append(word)
    return Command(line, text, words, options)


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a file."""
    block, is_output = Block(), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if is_output and line:
            block.expected.append(line)
        elif is_output:
            yield block
            block, is_output = Block(), False
        elif line == SEPARATOR:
            if not block.commands:
                raise ValueError(f"line {number}: {SEPARATOR} without a command above it")
            is_output = True
        elif line.startswith("#") or (not line and not block.commands):
            block.comments.append(line)
        elif line:
            block.commands.append(command_of(number, line))
        else:
            raise ValueError(f"line {number}: {SEPARATOR} is missing below the commands")


def rewritten(text: str, run: Callable[[Command], Iterator[str]]) -> str:
    """Return the file with what its commands print."""
    blocks = [block.with_output([line for each in block.commands for line in run(each)]) for block in blocks_of(text)]
    return "\n".join(blocks)


def numbers_of(text: str) -> list[int]:
    """Return the numbers of "0..3,7"."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        found += range(int(first), int(last) + 1) if dots else [int(first)]
    return found


def text_of(numbers: Sequence[int]) -> str:
    """Return numbers as in "0..3,7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs) or "none"
