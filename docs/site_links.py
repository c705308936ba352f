"""Hook of mkdocs: links from a page to files outside of docs/ lead to the repository.

Where no repository is known (TABLEGATE_REPOSITORY_URL is not set), such a link becomes its text.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(((?:\.\./)+[^()\s]*|[^()\s:]+\.py)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with its links to other files of the repository mended."""
    docs = Path(config["docs_dir"]).resolve()
    here = Path(page.file.abs_src_path).resolve().parent

    def mended(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        file = (here / target.partition("#")[0]).resolve()
        if file.is_relative_to(docs) and file.suffix != ".py":
            return link[0]
        if not config["repo_url"]:
            return text
        kind = "tree" if file.is_dir() else "blob"
        return f"[{text}]({config['repo_url'].rstrip('/')}/{kind}/main/{file.relative_to(docs.parent)})"

    return _LINK.sub(mended, markdown)
