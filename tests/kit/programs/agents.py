"""A client of the Model Context Protocol, by its official SDK, which starts `tablegate mcp` as agents do."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:  # the SDK takes a second to import, in each process that collects tests
    from mcp.client.client import Client

COMMAND = (sys.executable, "-m", "tablegate.gateway.cli")


class Agent:
    """Asks tools: `ask` gives the structured answer, `refusal` the sentence of an error."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    async def tools(self) -> dict[str, Any]:
        """Return the tools by name. Answers are held to their schemas from then on."""
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Return the answer of a tool."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """Return why there is no answer."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        assert result.structured_content is None
        [text] = result.content
        return str(text.text)  # type: ignore[union-attr]


@asynccontextmanager
async def agent(*words: str, before: tuple[str, ...] = (), log: TextIO = sys.stderr) -> AsyncIterator[Agent]:
    """Yield an agent of `tablegate mcp` with these words; `before` them those of `tablegate`; its stderr is `log`."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command, *arguments = COMMAND
    started = StdioServerParameters(command=command, args=[*arguments, *before, "mcp", *words])
    async with Client(stdio_client(started, log)) as client:
        yield Agent(client)


@contextmanager
def mcp_over_http(*words: str) -> Iterator[str]:
    """Yield the URL at which `tablegate mcp` with these words serves streamable HTTP."""
    command = [*COMMAND, "mcp", *words, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://\S+/mcp", line)
            assert found is not None, line
            yield found[0]
        finally:
            process.terminate()
