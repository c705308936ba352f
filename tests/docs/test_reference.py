"""The reference pages are what the code says now, and code in pages is code."""

import ast
import subprocess
import sys
import textwrap

import pytest

from tests.kit.docs.pages import ROOT, blocks, pages


@pytest.mark.tools
def test_generating_the_reference_leaves_no_difference() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reference" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"run docs/reference/generate.py\n{done.stdout}{done.stderr}"


def test_python_in_pages_is_python() -> None:
    for page in pages():
        if (ROOT / "docs" / "reference") in page.parents:
            continue  # signatures
        for block in blocks(page):
            if block.language == "python":
                ast.parse(textwrap.dedent(block.text), f"{page.relative_to(ROOT)}, line {block.line}")
