"""The Java client: its own tests, its jar as an application gets it, and its how-to, compiled and run with that."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.kit.client_scenarios.built import CLIENTS, built_java, make_clients
from tests.kit.gateways_in_process.live_ratings import LiveRatings
from tests.kit.table.filled import ROOT

pytestmark = [pytest.mark.timeout(1_200), pytest.mark.tools, pytest.mark.jvm]  # who comes first builds the client

JAVA = CLIENTS / "java"
HOW_TO = ROOT / "docs/how-to/subscribe-from-java.md"
RUN_TIMEOUT_S = 600
VERSION = "0.2.0"
ARTIFACT = f"org/example/tablegate/tablegate-client/{VERSION}/tablegate-client-{VERSION}"

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>app</groupId>
  <artifactId>app</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.release>11</maven.compiler.release>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  {repositories}
  <dependencies>
    {dependency}
    <dependency>
      <groupId>com.google.protobuf</groupId>
      <artifactId>protobuf-java</artifactId>
      <version>{protobuf}</version>
    </dependency>
  </dependencies>
  <build>
    <plugins>{plugins}</plugins>
  </build>
</project>
"""
# What was downloaded once is taken from there. A local repository of its own shows that the client comes from the pack.
SETTINGS = """<settings>
  <profiles>
    <profile>
      <id>downloaded</id>
      <repositories><repository><id>downloaded</id><url>{url}</url></repository></repositories>
      <pluginRepositories><pluginRepository><id>downloaded</id><url>{url}</url></pluginRepository></pluginRepositories>
    </profile>
  </profiles>
  <activeProfiles><activeProfile>downloaded</activeProfile></activeProfiles>
</settings>
"""
PLUGINS = ("maven-resources-plugin", "maven-compiler-plugin", "maven-dependency-plugin")

# What a reader of the how-to has from the first block, and what imports an editor adds.
BLOCK = """import com.example.examples.ratings.v1.*;
import com.google.protobuf.DynamicMessage;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.example.tablegate.*;

final class Block{number} {{
  public static void main(String[] args) throws Exception {{
    try (var connection = Tablegate.connect(args[0])) {{
{text}
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def example() -> Path:
    return built_java().parent


@pytest.fixture(scope="module")
def packed(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `make maven`, elsewhere."""
    del example
    packed = tmp_path_factory.mktemp("maven")
    make_clients("java-pack", f"DIST={packed}")
    return packed


def _run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-5_000:]}{done.stderr[-5_000:]}"
    return done.stdout


def _plugin(pom: str, name: str) -> str:
    """Return a plugin with the version that the example pins, so that it need not be downloaded."""
    [version] = re.findall(rf"<artifactId>{name}</artifactId>\s*<version>([^<]+)<", pom)
    return f"<plugin><artifactId>{name}</artifactId><version>{version}</version></plugin>"


def test_what_of_the_java_client_needs_no_gateway(example: Path) -> None:
    del example
    make_clients("java-test")
    reports = [*JAVA.glob("*/target/surefire-reports/*.xml")]
    ran = sum(int(ElementTree.parse(report).getroot().attrib["tests"]) for report in reports)
    assert ran >= 39, "Maven finds the tests"


@pytest.mark.long
def test_the_packed_java_client_has_what_a_repository_asks_for(packed: Path) -> None:
    jar, sources, javadoc = (
        set(zipfile.ZipFile(packed / f"{ARTIFACT}{kind}.jar").namelist()) for kind in ("", "-sources", "-javadoc")
    )
    table = "org/example/tablegate/LiveTable"
    assert jar >= {f"{table}.class", "META-INF/LICENSE"}
    assert f"{table}.java" in sources
    assert f"org.example.tablegate/{table}.html" in javadoc
    pom = (packed / f"{ARTIFACT}.pom").read_text("utf-8")
    assert "<parent>" not in pom, "it would have to be published, too"
    project = (ROOT / "clients/python/pyproject.toml").read_text("utf-8")
    assert f'version = "{VERSION}"' in project, "clients have one version"


@pytest.mark.long
def test_a_project_of_maven_runs_the_java_how_to(example: Path, packed: Path, tmp_path: Path) -> None:
    page = HOW_TO.read_text("utf-8")
    [xml] = re.findall(r"```xml\n(.*?)```", page, re.DOTALL)
    repositories, dependency = xml.replace("file:///path/to/dist/maven", packed.as_uri()).split("\n\n")
    pom = (JAVA / "example/pom.xml").read_text("utf-8")
    [protobuf] = re.findall(r"<protobuf\.version>([^<]+)<", pom)
    plugins = "".join(_plugin(pom, name) for name in PLUGINS)
    (tmp_path / "pom.xml").write_text(
        POM.format(repositories=repositories, dependency=dependency, protobuf=protobuf, plugins=plugins), "utf-8"
    )
    downloaded = Path.home() / ".m2/repository"
    (tmp_path / "settings.xml").write_text(SETTINGS.format(url=downloaded.as_uri()), "utf-8")
    sources = tmp_path / "src/main/java"
    shutil.copytree(example / "generated-sources/buf", sources)
    first, *blocks = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    for number, text in enumerate(blocks, 1):
        (sources / f"Block{number}.java").write_text(BLOCK.format(number=number, text=text), "utf-8")
    with LiveRatings() as live:
        live.put([362])
        live.read_source("ratings", 6)
        (sources / "Ratings.java").write_text(first.replace("127.0.0.1:50051", live.address), "utf-8")
        words = ["mvn", "--batch-mode", "--quiet", "--settings", "settings.xml", "-Dmaven.repo.local=local"]
        _run(*words, "compile", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=tmp_path)
        client = f"tablegate-client-{VERSION}.jar"
        assert (tmp_path / "lib" / client).read_bytes() == (packed / f"{ARTIFACT}.jar").read_bytes()

        java = ("java", "-cp", os.pathsep.join(["target/classes", "lib/*"]))
        shown = _run(*java, "Ratings", cwd=tmp_path).splitlines()
        assert {"movie 362 is worth 5.0", *(f"{movie}: {count}" for movie, count in live.counts.items())} <= {*shown}
        [read] = (number for number, text in enumerate(blocks, 1) if "atLeastSource" in text)
        assert _run(*java, f"Block{read}", live.address, cwd=tmp_path) == "5.0\n"
        [dynamic] = (number for number, text in enumerate(blocks, 1) if "Contract.of" in text)
        shown = _run(*java, f"Block{dynamic}", live.address, cwd=tmp_path).splitlines()
        assert shown.count(f"rating_count: {live.counts[362]}") == 1, "of the table"
        assert shown.count(f"  rating_count: {live.counts[362]}") == 1, "of a Get"
