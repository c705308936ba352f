"""The pages for those who come from elsewhere: their contracts are served, and their declarations become tables."""

import runpy
from pathlib import Path

import pytest

from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.planning.declarations import load_contract, load_table
from tests.kit.docs.pages import DOCS, blocks

PAGES = sorted((DOCS / "how-to").glob("come-from-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_becomes_a_table(page: Path, tmp_path: Path) -> None:
    files = {
        block.comment.removeprefix("file "): block.text for block in blocks(page) if block.comment.startswith("file ")
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if "application.py" in files:  # it publishes, and is no declaration
        table = runpy.run_path(str(tmp_path / "application.py"))["TABLE"]
        assert isinstance(table, FrameTable)
        assert (table.name, table.contract) == ("totals", "totals.proto")
        (tmp_path / "declared.py").write_text(
            "from tablegate.jobs import FrameTable, Json, Source\n"
            f"TABLE = FrameTable(name={table.name!r}, contract={table.contract!r}, rows=lambda orders: orders, "
            'sources={"orders": Source("orders", Json("customer STRING"))})\n'
        )
    declaration = "totals.py" if "totals.py" in files else "declared.py"
    contract = load_contract(load_table(str(tmp_path / declaration)))
    assert contract.name == "totals"
    assert [column.name for column in contract.key] == ["customer"]
