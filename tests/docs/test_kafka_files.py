"""The files of Kafka settings that a page shows: each can be read."""

from pathlib import Path

import certifi
import pytest

from tablegate.gateway.contract.kafka_settings import load_settings
from tablegate.gateway.contract.registry_settings import load_registry
from tests.kit.docs.pages import DOCS, Block, blocks

PAGE = DOCS / "how-to/connect-to-kafka.md"
FILES = [block for block in blocks(PAGE) if block.language == "toml"]
OF_A_REGISTRY = "[registry]"


@pytest.mark.parametrize("block", FILES, ids=[f"line {block.line}" for block in FILES])
def test_each_file_of_the_page_is_read(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # which are looked for and used for nothing here
        monkeypatch.setenv(name, "some")
    (tmp_path / "secrets").mkdir()
    for name in ("kafka-password", "api-secret", "registry-secret", "registry-password", "reader-password"):
        (tmp_path / "secrets" / name).write_text("secret")
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
    file = tmp_path / "kafka.toml"
    alone = block.text.startswith(OF_A_REGISTRY)
    file.write_text(f'bootstrap = "kafka:9092"\n{block.text}' if alone else block.text)
    settings = load_settings(file, environ={})
    assert f'"{settings.bootstrap}"' in file.read_text()
    assert settings.librdkafka()["bootstrap.servers"] == settings.bootstrap
    registry = load_registry(file, environ={})
    assert (registry is not None) == (OF_A_REGISTRY in block.text)
