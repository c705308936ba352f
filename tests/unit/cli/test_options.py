"""The command line as a whole: environment variables, completion, versions, what is imported when."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import typer.core
from click.testing import CliRunner, Result
from rich.text import Text

from tablegate.gateway.cli.errors import missing_distribution
from tests.kit.command_line import COMMAND

# Those that act by themselves and end, for which a variable would be a trap.
WITHOUT_VARIABLE = {"--version", "--install-completion", "--show-completion"}
SHARED = {  # by options of several commands, or by none but for what one calls them
    "TABLEGATE_ADDRESS",
    "TABLEGATE_BOOTSTRAP",
    "TABLEGATE_CA",
    "TABLEGATE_CERT",
    "TABLEGATE_CHECKPOINTS",
    "TABLEGATE_JOB_ALL",
    "TABLEGATE_JSON",
    "TABLEGATE_KAFKA",
    "TABLEGATE_KEY",
    "TABLEGATE_STORE",
}

OptionOf = tuple[str, typer.core.TyperOption, str]


def _run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words), env={"COLUMNS": "200", **environment})


@functools.cache
def _help(command: str) -> str:
    return _run(*command.split(), "--help").stdout


def _options(words: tuple[str, ...] = (), group: object = None, prefix: str = "TABLEGATE") -> Iterator[OptionOf]:
    """Yield each option of each command: the command, the option, its variable."""
    command = COMMAND if group is None else group
    for option in command.params:  # type: ignore[attr-defined]
        if isinstance(option, typer.core.TyperOption) and not WITHOUT_VARIABLE & {*option.opts}:
            yield " ".join(words), option, str(option.envvar or f"{prefix}_{option.name}".upper())
    if isinstance(command, typer.core.TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from _options((*words, name), below, f"{prefix}_{name.replace('-', '_')}".upper())


ALL = list(_options())


def test_there_are_options() -> None:
    assert len(ALL) > 70
    assert {command for command, _, _ in ALL} >= {"", "get", "serve", "drain", "demo", "job run", "job reset"}


@pytest.mark.parametrize(
    ("command", "option", "variable"), [pytest.param(*one, id=f"{one[0]} {one[1].opts[0]}".strip()) for one in ALL]
)
def test_each_option_has_a_variable_of_its_name(command: str, option: typer.core.TyperOption, variable: str) -> None:
    long = option.opts[0].removeprefix("--").replace("-", "_").upper()
    if variable in SHARED:
        assert variable.endswith(long)
    else:
        words = "".join(f"{word.replace('-', '_')}_".upper() for word in command.split())
        assert variable == f"TABLEGATE_{words}{long}"
    assert variable in _help(command)


def test_no_help_has_words_in_brackets_which_are_not_shown() -> None:
    """They are markup there: of `tablegate-gateway[otel]` the extra would be missing."""
    found = [f"{command} {option.name}: {option.help}" for command, option, _ in ALL if loses_words(option.help)]
    assert not found, "; ".join(found)


def loses_words(text: str | None) -> bool:
    """Return whether a text loses something where it is shown."""
    return Text.from_markup(text or "").plain != (text or "")


def test_a_variable_does_what_its_option_does() -> None:
    assert "no gateway answers at 127.0.0.1:1" in _run("tables", TABLEGATE_ADDRESS="127.0.0.1:1").stderr
    assert "should be greater than or equal to 1" in _run("range", "ratings", TABLEGATE_RANGE_LIMIT="0").stderr
    said = _run("serve", TABLEGATE_BOOTSTRAP="localhost:1", TABLEGATE_SERVE_CONTRACT="none.proto").stderr
    assert 'contract "none.proto" is not a file' in said
    said = _run("job", "run", "ratings", "--bootstrap", "localhost:1", TABLEGATE_JOB_ALL="1").stderr
    assert "both names and --all are given" in said


def test_the_version_is_that_of_each_installed_distribution() -> None:
    shown = dict(line.split() for line in _run("--version").stdout.splitlines())
    assert shown["tablegate-gateway"] == metadata.version("tablegate-gateway")
    assert shown.keys() == {"tablegate", *(f"tablegate-{name}" for name in ("gateway", "jobs", "client", "proto"))}
    assert _run("tables", "--help", TABLEGATE_VERSION="1.2").stdout.strip().startswith("Usage: ")


@pytest.mark.tools
@pytest.mark.parametrize(("shell", "words"), [("bash", "complete -o default"), ("zsh", "#compdef tablegate")])
def test_shells_get_completion(shell: str, words: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [str(Path(sys.executable).with_name("tablegate")), "--show-completion", shell]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert words in done.stdout


@pytest.mark.tools
def test_command_that_asks_a_gateway_imports_no_jobs_client_or_examples() -> None:
    program = "from tablegate.gateway.cli.main import app; app(['status', '--address', 'x'], standalone_mode=False)"
    names = "print(sorted(name for name in sys.modules if name.startswith('tablegate.') and name.count('.') == 1))"
    script = f"import sys\ntry:\n    {program}\nexcept BaseException:\n    pass\n{names}"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "['tablegate.gateway', 'tablegate.v1']\n"


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("tablegate.jobs", "tablegate-jobs"),
        ("tablegate.jobs.table", "tablegate-jobs"),
        ("tablegate.examples.demo", "tablegate"),
        ("tablegate.client", "tablegate-client"),
        ("mcp", "'tablegate-gateway[mcp]'"),
        ("pyarrow", "'tablegate-client[arrow]'"),
    ],
)
def test_what_is_not_installed_is_named(module: str, distribution: str) -> None:
    sentence = missing_distribution(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert sentence is not None
    assert sentence.endswith(f"pip install {distribution}")


@pytest.mark.parametrize("module", ["numpy", "tablegate.gateway.clli", "tablegate", None])
def test_another_missing_module_is_a_defect(module: str | None) -> None:
    assert missing_distribution(ModuleNotFoundError(name=module)) is None
