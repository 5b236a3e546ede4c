"""Settings of the docs as a site: `make docs` builds the pages of this folder into build/site."""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "kmigrate"
author = "the authors of kmigrate"
copyright = author  # noqa: A001  # Sphinx wants this name

extensions = ["myst_parser", "sphinx_external_toc", "sphinx_copybutton"]
external_toc_path = "_toc.yml"
myst_heading_anchors = 4  # the anchors of headings are those that a Git host makes
nitpicky = True

html_theme = "furo"
html_title = "kmigrate"
html_copy_source = False
html_show_sphinx = False

_LINK_OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[\w./-]+)\)")


def setup(app: Sphinx) -> None:
    """Change what the site shows in another way than a Git host."""
    app.add_lexer("mermaid", TextLexer)  # diagrams are shown as text: the library that draws them is on another host
    app.connect("source-read", _without_folders)


def _without_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Show a link to a folder of the repository as text, because the site has no such folder."""
    here = Path(app.srcdir, page).parent
    source[0] = _LINK_OUT_OF_DOCS.sub(lambda found: found[1] if (here / found[2]).is_dir() else found[0], source[0])
