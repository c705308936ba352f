"""Java's classes are asked for by their whole names: each dot of `jvm.org.apache` is a search of three hundred jars."""

import re

from tests.kit.table.filled import ROOT

JOBS = ROOT / "streamjobs/tablegate/jobs"
WITH_DOTS = re.compile(r"\b_?jvm\.(?!__)|is_instance_of")


def test_whole_names_alone_are_asked_for() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(JOBS.rglob("*.py"))
        if path.name != "java_classes.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if WITH_DOTS.search(line)
    ]
    assert not found, "use tablegate.jobs.dataflow.java_classes: " + "; ".join(found)
