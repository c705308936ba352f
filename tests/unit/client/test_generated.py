"""What is generated of the client is what its generator makes of its source."""

import runpy
from pathlib import Path

import tablegate.client

CLIENT = Path(tablegate.client.__file__).parent


def test_the_version_for_threads_is_generated() -> None:
    generator = runpy.run_path(str(CLIENT.parents[1] / "generate.py"))
    assert generator["TARGET"] == CLIENT / "streams.py"
    assert generator["generated"]() == (CLIENT / "streams.py").read_text()
