"""A server in this process, in a thread of its own, so that clients of any kind can block."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from tablegate.gateway.http.server import HttpServer

START_TIMEOUT_S = 30


class ServerThread:
    """The server that `make` makes, in its thread's event loop."""

    def __init__(self, make: Callable[[], HttpServer]) -> None:
        self.port = 0
        self._make = make
        self._started: Future[int] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._started.result(START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        server = self._make()
        await server.start()
        self._started.set_result(server.port)
        await stopped.wait()
        await server.stop(0)
