"""When Java notes its classes, when it maps an archive of them, and when neither."""

import os
from pathlib import Path

import pytest

from tablegate.jobs.jars.class_archive import ARCHIVES_MAX, ClassArchive

CLASS_PATH = "/opt/a.jar:/opt/b.jar"
NOTED = b"""java/lang/Object
java/lang/invoke/BoundMethodHandle$SpeciesData
java/lang/invoke/BoundMethodHandle$Species_LLI
@lambda-form-invoker [LF_RESOLVE] java.lang.invoke.DirectMethodHandle$Holder invokeStatic LL_I
@lambda-proxy scala/Option apply ()Lscala/Function0;
scala/Opti"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLEGATE_CACHE", str(tmp_path / "cache"))
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Return a Java that writes its arguments into the archive that it is told to write."""
    path = tmp_path / "java"
    path.write_text(
        '#!/bin/sh\nfor one; do case $one in -XX:SharedArchiveFile=*) echo "$@" >"${one#*=}";; esac; done\n'
    )
    path.chmod(0o755)
    return path


def archive(java: Path, class_path: str = CLASS_PATH, given: str = "") -> ClassArchive:
    return ClassArchive("spark", java, class_path.split(":"), given=given)


def write(one: ClassArchive) -> str:
    """Let a program note its classes and end; return where the archive is."""
    [noted] = one.options(records=True)
    Path(noted.partition("=")[2]).write_bytes(NOTED)
    writing = one.write(CLASS_PATH)
    assert writing is not None
    assert writing.wait() == 0
    return archive_of(one)


def archive_of(one: ClassArchive) -> str:
    options = one.options(records=False)
    return options[0].partition("=")[2] if options else ""


def test_the_second_program_maps_what_the_first_has_noted(java: Path) -> None:
    assert archive(java).options(records=False) == []
    arguments = Path(write(archive(java))).read_text()
    assert f"-Xshare:dump -Xlog:disable -cp {CLASS_PATH}" in arguments
    listed = Path(arguments.split("SharedClassListFile=")[1].split()[0])
    assert listed.read_text().splitlines() == [
        "java/lang/Object",
        "java/lang/invoke/BoundMethodHandle$SpeciesData",
        "@lambda-proxy scala/Option apply ()Lscala/Function0;",
    ]
    assert len(list(listed.parent.glob("*.classes"))) == 1
    second = archive(java)
    assert second.options(records=True)[0].startswith("-XX:SharedArchiveFile=")
    assert second.write(CLASS_PATH) is None


def test_another_class_path_or_java_has_another_archive(java: Path) -> None:
    write(archive(java))
    assert not archive_of(archive(java, "/opt/a.jar"))
    os.utime(java, (1, 1))
    assert not archive_of(archive(java))


def test_an_archive_that_was_cut_off_is_written_again(java: Path) -> None:
    Path(write(archive(java))).write_bytes(bytes(100))
    assert archive(java).options(records=True)[0].startswith("-XX:DumpLoadedClassList=")


def test_of_two_programs_one_has_the_archive_written(java: Path) -> None:
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    both = [archive(java), archive(java)]
    lists = {Path(one.options(records=True)[0].partition("=")[2]) for one in both}
    assert len(lists) == 2
    for noted in lists:
        noted.write_bytes(NOTED)
    first = both[0].write(CLASS_PATH)
    assert first is not None
    try:
        assert both[1].write(CLASS_PATH) is None
    finally:
        first.kill()
        first.wait()


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine", "-Xshare:off"])
def test_the_users_own_archive_goes_before(java: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive(java, given=f"-Da=b {option}").options(records=True) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", option)
    assert archive(java).options(records=True) == []


def test_a_cache_that_cannot_be_written_is_done_without(java: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert archive(java).options(records=True) == []


def test_old_archives_make_room(java: Path) -> None:
    written = [write(archive(java, f"/opt/{number}.jar")) for number in range(ARCHIVES_MAX + 1)]
    assert [Path(one).exists() for one in written] == [False] + [True] * ARCHIVES_MAX
