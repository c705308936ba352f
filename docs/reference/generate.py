"""Writes the reference pages from the code: `python docs/reference/generate.py`; `--check` only compares.

Each page is a function that reads the live code: the command line's own parser, the comments of the .proto files, the
table of errors, the metrics' definitions, and the modules that users import. So nothing here repeats what they say.
What cannot be read from an imported object (comments, annotations as they are written) is read from its source.
"""

import difflib
import importlib
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from limits import limits_page
from python_modules import about_module, escaped, escaped_prose, members, public

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROTO = ROOT / "proto"
NOTE = "<!-- Written by docs/reference/generate.py: change the code or the generator, then run it again. -->\n\n"


def main() -> None:
    """Write the pages, or with `--check` print how they differ and exit with 1."""
    stale = 0
    for name, text in pages().items():
        page = HERE / name
        old = page.read_text() if page.exists() else ""
        if old == text:
            continue
        stale += 1
        if "--check" in sys.argv[1:]:
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, "generated"))
        else:
            page.write_text(text)
            print(f"wrote {page.relative_to(ROOT)}")
    sys.exit(1 if stale and "--check" in sys.argv[1:] else 0)


def pages() -> dict[str, str]:
    """Return the text of each generated page by its file name, formatted as `make check` wants it."""
    return {name: _formatted(name, text) for name, text in _pages().items()}


def _formatted(name: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", HERE / name, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _pages() -> dict[str, str]:
    return {
        "cli.md": cli_page(),
        "annotations.md": annotations_page(),
        "query-messages.md": query_messages_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "states.md": states_page(),
        "jobs.md": jobs_page(),
        "publishing.md": publishing_page(),
        "testing.md": testing_page(),
        "client.md": client_page(),
        "limits.md": NOTE + limits_page(),
    }


# --- commands


def cli_page() -> str:
    """Return the page of all commands, from the parser that runs them."""
    import typer

    from tablegate.gateway.cli.main import app

    root: Any = typer.main.get_command(app)
    text = NOTE + "# Commands\n\n" + _prose(root.help) + "\n\n"
    prefix = (root.context_settings or {}).get("auto_envvar_prefix")
    if prefix:
        text += f"Each option has an environment variable: `--limit` of `tablegate range` is `{prefix}_RANGE_LIMIT`. "
        text += "Where several commands share one, it has the shorter name that is shown.\n\n"
    text += "Every command has `--help`. These options stand before the command:\n" + _options(root)
    for path, command in _commands(root, "tablegate"):
        usage = [path, "[OPTIONS]" if _optional(command) else ""]
        usage += [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
        text += f"\n## {path}\n\n```text\n{' '.join(filter(None, usage))}\n```\n\n{_prose(command.help)}\n"
        text += _options(command)
    return text


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _optional(command: Any) -> bool:
    return any(parameter.param_type_name == "option" and parameter.name != "help" for parameter in command.params)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _options(command: Any) -> str:
    rows = ""
    for parameter in command.params:
        if parameter.name == "help" or parameter.hidden:
            continue
        if parameter.param_type_name == "argument":
            names = f"`{_argument(parameter)}`"
        else:
            value = "" if parameter.is_flag else f" {parameter.metavar or _type_name(parameter)}"
            names = ", ".join(f"`{name}{value}`" for name in parameter.opts)
        notes = [_cell(parameter.help or "")]
        if parameter.required and parameter.param_type_name == "option":
            notes.append("Required.")
        default = parameter.default
        if default not in (None, False, (), []) and parameter.show_default is not False and not callable(default):
            notes.append(f"Default: `{getattr(default, 'value', default)}`.")
        if parameter.envvar:
            notes.append(f"Environment: `{parameter.envvar}`.")
        rows += f"| {names} | {' '.join(note for note in notes if note)} |\n".replace("\u00a0", " ")
    return f"\n| option | meaning |\n|---|---|\n{rows}" if rows else ""


def _type_name(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if hasattr(kind, "__members__"):
        return "\\|".join(str(choice.value) for choice in kind)
    return {int: "N", float: "SECONDS", Path: "PATH"}.get(kind, "TEXT")


# --- .proto files


class _Comments:
    """A .proto file and the comment before each of its parts."""

    def __init__(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "set"
            includes = [f"-I{PROTO}", f"-I{Path(protoc.__file__).parent / '_proto'}"]
            if protoc.main(["protoc", *includes, f"--descriptor_set_out={out}", "--include_source_info", name]):
                raise SystemExit(f"protoc refuses {name}")
            self.file: FileDescriptorProto = FileDescriptorSet.FromString(out.read_bytes()).file[0]
        self._leading = {
            tuple(location.path): location.leading_comments
            for location in self.file.source_code_info.location
            if location.leading_comments
        }

    def of(self, *path: int) -> str:
        """Return the comment before the part at a path of field numbers and indexes."""
        return " ".join(self._leading.get(path, "").split())

    def introduction(self) -> str:
        """Return what the file opens with."""
        lines = (PROTO / self.file.name).read_text().splitlines()
        opening = [line.removeprefix("//").strip() for line in lines[: lines.index('syntax = "proto3";')]]
        return escaped(" ".join(" ".join(opening).split()))

    def messages(self) -> Iterator[str]:
        """Yield the section of each message and enum, in the order of the file."""
        parts = [(self._line(4, i), _message(self, m, (4, i))) for i, m in enumerate(self.file.message_type)]
        parts += [(self._line(5, i), self._enum(i)) for i in range(len(self.file.enum_type))]
        for _, section in sorted(parts):
            yield section

    def _line(self, *path: int) -> int:
        return next(int(at.span[0]) for at in self.file.source_code_info.location if tuple(at.path) == path)

    def _enum(self, index: int) -> str:
        enum = self.file.enum_type[index]
        text = f"\n## {enum.name}\n\n{_about(self.of(5, index), enum.name)}\n\n| value | meaning |\n|---|---|\n"
        for number, value in enumerate(enum.value):
            text += f"| `{value.name}` | {_cell(self.of(5, index, 2, number))} |\n"
        return text


def _message(comments: _Comments, message: DescriptorProto, path: tuple[int, ...]) -> str:
    text = f"\n## {message.name}\n\n{_about(comments.of(*path), message.name)}\n\n"
    if message.field:
        text += "| field | type | meaning |\n|---|---|---|\n"
    for number, field in enumerate(message.field):
        kind = _field_type(field, message)
        oneof = ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            oneof = f" (one of `{message.oneof_decl[field.oneof_index].name}`)"
        text += f"| `{field.name}` | {kind} | {_cell(comments.of(*path, 2, number))}{oneof} |\n"
    return text


def _field_type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    name = (
        field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    for entry in message.nested_type:
        if entry.name == name and entry.options.map_entry:
            key, value = (
                FieldDescriptorProto.Type.Name(part.type).removeprefix("TYPE_").lower() for part in entry.field
            )
            return f"map<{key}, {value}>".replace("<", "&lt;").replace(">", "&gt;")
    own = field.type_name.startswith(".tablegate.v1.")
    linked = f"[{name}](#{name.lower()})" if own else f"`{field.type_name.lstrip('.') or name}`"
    return f"repeated {linked}" if field.label == FieldDescriptorProto.LABEL_REPEATED else linked


def _about(comment: str, name: str) -> str:
    text = re.sub(rf"^{name} (is|has|says|maps|reads|streams|makes|holds|binds|turns)\b", r"It \1", comment)
    return escaped(text)


def annotations_page() -> str:
    """Return the page of the annotations, from the comments of options.proto."""
    comments = _Comments("tablegate/v1/options.proto")
    text = NOTE + f"# Annotations\n\n{comments.introduction()}\n\n"
    text += 'A contract imports them: `import "tablegate/v1/options.proto";`\n\n'
    text += "| option | on | of type | meaning |\n|---|---|---|---|\n"
    for index, extension in enumerate(comments.file.extension):
        place = extension.extendee.rpartition(".")[2].removesuffix("Options").lower()
        kind = extension.type_name.rpartition(".")[2]
        option = f"(tablegate.v1.{extension.name})"
        text += f"| `{option}` | {place} | [{kind}](#{kind.lower()}) | {_cell(comments.of(7, index))} |\n"
    return text + "".join(comments.messages())


def query_messages_page() -> str:
    """Return the page of the messages that contracts put into requests and responses."""
    comments = _Comments("tablegate/v1/query.proto")
    text = NOTE + f"# Messages of requests and responses\n\n{comments.introduction()}\n\n"
    text += 'A contract imports them: `import "tablegate/v1/query.proto";`\n'
    return text + "".join(comments.messages())


# --- errors


def errors_page() -> str:
    """Return the page of the errors: reasons from errors.proto, statuses and advice from the gateway's own table."""
    from google.rpc import code_pb2

    from tablegate.gateway.query import errors
    from tablegate.v1 import errors_pb2

    classes: dict[int, list[Any]] = {}
    for kind in _subclasses(errors.QueryError):
        reason = kind.__dict__.get("reason")
        if isinstance(reason, int) and kind.__module__ == errors.__name__:
            classes.setdefault(reason, []).append(kind)
    comments = _Comments("tablegate/v1/errors.proto")
    text = NOTE + "# Errors\n\n"
    text += (
        "Every error has a `google.rpc.ErrorInfo` in the domain `tablegate`, whose reason is one of these. "
        "Only UNAVAILABLE is worth a retry, after the pause that `google.rpc.RetryInfo` asks for.\n\n"
        "| reason and status | meaning | what to do |\n|---|---|---|\n"
    )
    for index, value in enumerate(comments.file.enum_type[0].value):
        if not value.number:
            continue
        comment = comments.of(5, 0, 2, index)
        status, _, meaning = comment.partition(": ")
        served = code_pb2.Code.Name(errors.STATUS_OF_REASON[value.number])
        if served != status:
            raise SystemExit(f"{value.name}: errors.proto says {status}, the gateway sends {served}")
        advice = ""
        for kind in classes.get(value.number, ()):
            said = " ".join((kind.__doc__ or "").split())
            advice = said.rpartition(": ")[2] if ": " in said else advice
            if kind.retry_after_ms is not None:
                advice = f"{advice} Pause: {kind.retry_after_ms} ms."
        name = f"`{value.name.removeprefix('ERROR_REASON_')}`"
        text += f"| {name}<br>{served} | {_sentence(_cell(meaning))} | {_sentence(_cell(advice))} |\n"
    missing = set(errors_pb2.ErrorReason.values()) - {0} - set(errors.STATUS_OF_REASON)
    if missing:
        raise SystemExit(f"reasons without a status: {missing}")
    return text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


# --- metrics


def metrics_page() -> str:
    """Return the page of the metrics.

    Those of a gateway are what it tells of a status and a process that have one of each, those of jobs are from the
    module that defines them.
    """
    from prometheus_client.metrics import MetricWrapperBase

    from tablegate.gateway.contract.types import Partition
    from tablegate.gateway.server.metrics import HistoryReach, process_metrics, store_metrics, usage_metrics
    from tablegate.gateway.stores.base import StoreUsage
    from tablegate.gateway.telemetry.measures import Measures
    from tablegate.jobs import metrics
    from tablegate.v1.status_pb2 import GetStatusResponse

    status = GetStatusResponse()
    status.gateways_poison.add(reason="a reason")
    table = status.tables.add(table="a table", state=1)  # type: ignore[arg-type]
    table.manifest.partition_count = table.restore_rows_per_second = 1
    table.generations.add(state=1)  # type: ignore[arg-type]
    table.poison.add(reason="a reason")
    table.partitions.add(phase=1, state=1).as_of_time.GetCurrentTime()  # type: ignore[arg-type]
    measures = Measures()
    for histograms in measures.histograms:
        histograms[histograms.labels].add(1)
    for counts in measures.counts:
        counts[counts.labels] += 1
    process = {"process": "a process", **measures.numbers()}
    process.update(dict.fromkeys(("cpu_s", "memory_bytes", "open_files", "start_s", "kept_bytes", "kept_bytes_max"), 1))
    process["snapshot_files"] = [("ratings", 0, 1, 1)]
    process["snapshots_problem"] = ""
    text = NOTE + "# Metrics\n\n"
    head = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    text += "## Gateways\n\n`GET /metrics` on the gateway's port, or on that of `--admin`, in the text format of "
    text += "Prometheus or, where it is asked for, of OpenMetrics. Any worker answers for all: counts are of all "
    text += f"workers together, and go on where a worker is started again.\n\n{head}"
    reach = HistoryReach("a table", Partition(0), 1, 1)
    usage = usage_metrics(StoreUsage(1, 1, {"a kind": 1}), [reach])
    for family in (*process_metrics([process]), *store_metrics(status), *usage):
        if not family.samples:
            raise SystemExit(f"metrics: nothing here makes a sample of {family.name}")
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        text += f"| `{name}` | {family.type} | {labels} | {_cell(family.documentation)} |\n"
    text += f"\n## Jobs\n\n{_prose(str(metrics.__doc__).partition('Decision:')[0])}\n\n{head}"
    for metric in vars(metrics).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        [family] = metric.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        text += f"| `{name}` | {family.type} | {labels} | {_cell(family.documentation)} |\n"
    return text


# --- states


def states_page() -> str:
    """Return the page of the states that logs, status and metrics name, from the tables that the gateway moves by."""
    text = NOTE + "# States\n\n"
    module = importlib.import_module("tablegate.gateway.replication.states")
    text += "A table, each of its generations, and each partition of a generation have a state. A move that is not "
    text += "listed here is a defect: the gateway refuses it.\n"
    for kind in ("Table", "Generation", "Partition"):
        states = getattr(module, f"{kind}State")
        moves = getattr(module, f"{kind.upper()}_TRANSITIONS")
        meanings = _comments_of(states)
        text += f"\n## {kind}\n\n{escaped_prose(inspect.getdoc(states) or '')}\n\n"
        text += "| state | meaning | moves |\n|---|---|---|\n"
        for state in states:
            onward: dict[Any, list[str]] = {}
            for (origin, event), target in moves.items():
                if origin is state:
                    onward.setdefault(target, []).append(str(event.value))
            listed = "<br>".join(f"→ `{target.name}`: {', '.join(events)}" for target, events in onward.items())
            text += f"| `{state.name}` | {_sentence(_cell(meanings.get(state.name, '')))} | {listed} |\n"
    return text


def _comments_of(kind: type) -> dict[str, str]:
    """Return the comment behind each member of an enum."""
    lines = inspect.getsource(kind).splitlines()
    return dict(match.groups() for line in lines if (match := re.match(r" +(\w+) = .*?  # (.+)$", line)))


# --- Python modules


def jobs_page() -> str:
    """Return the page of what declarations import."""
    module = importlib.import_module("tablegate.jobs")
    return NOTE + f"# tablegate.jobs\n\n{about_module(module)}\n" + members(module)


def testing_page() -> str:
    """Return the page of what tests of declarations import."""
    module = importlib.import_module("tablegate.jobs.testing")
    return NOTE + f"# tablegate.jobs.testing\n\n{about_module(module)}\n" + members(module)


def publishing_page() -> str:
    """Return the page of what programs that publish DataFrames import."""
    module = importlib.import_module("tablegate.jobs.publishing")
    return NOTE + f"# tablegate.jobs.publishing\n\n{about_module(module)}\n" + members(module)


def client_page() -> str:
    """Return the page of the Python client: for threads, for asyncio, on disk, for Arrow and for Spark."""
    module = importlib.import_module("tablegate.client")
    aio = importlib.import_module("tablegate.client.aio")
    local = importlib.import_module("tablegate.client.local")
    local_aio = importlib.import_module("tablegate.client.local.aio")
    arrow = importlib.import_module("tablegate.client.arrow")
    spark = importlib.import_module("tablegate.client.spark")
    own = [name for name in public(aio) if getattr(aio, name) is not getattr(module, name, None)]
    text = NOTE + f"# tablegate.client\n\n{about_module(module)}\n" + members(module)
    text += f"\n# tablegate.client.aio\n\n{about_module(aio)}\n" + members(aio, own)
    text += f"\n# tablegate.client.local\n\n{about_module(local)}\n" + members(local)
    text += f"\n# tablegate.client.local.aio\n\n{about_module(local_aio)}\n" + members(local_aio)
    text += f"\n# tablegate.client.arrow\n\n{about_module(arrow)}\n" + members(arrow)
    return text + f"\n# tablegate.client.spark\n\n{about_module(spark)}\n" + members(spark, ["register"])


# --- text


def _prose(text: str | None) -> str:
    """Return help texts of commands as Markdown."""
    lines = inspect.cleandoc(re.sub(r"\[/?bold\]", "`", text or "")).splitlines()
    table = [bool(re.match(r"\w+ {2,}", line)) for line in lines]  # words and their meanings, in columns
    out: list[str] = []
    for number, line in enumerate(lines):
        starts, ends = not (number and table[number - 1]), not any(table[number + 1 : number + 2])
        if table[number]:
            out += [*(["", "```text"] if starts else []), line, *(["```"] if ends else [])]
        else:
            out.append(escaped(line))
    return "\n".join(out)


def _cell(text: str) -> str:
    return re.sub(r"\[/?bold\]", "`", escaped(" ".join(text.split()))).replace("|", "\\|")


if __name__ == "__main__":
    main()
