"""A hook of MkDocs: a page that only names a file outside docs/ gets that file's text.

Such documents lie beside the code that they explain. Their links into docs/ become links between pages.
"""

import re
from pathlib import Path
from typing import Any

NAMED = re.compile(r"This page of the site is \[.*\]\((.*)\)\.\n")
LINK = re.compile(r"\]\((?:\.\./)*docs/")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text that is made a page of."""
    named = NAMED.fullmatch(markdown)
    if named is None:
        return markdown
    path = Path(page.file.abs_src_path).parent / named[1]
    return LINK.sub("](", path.read_text(encoding="utf-8"))
