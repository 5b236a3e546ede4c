"""Settings of the docs as a site: `make docs` builds the pages of this folder into build/site."""

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
copybutton_exclude = ".gp, .go"


def setup(app: Sphinx) -> None:
    """Show diagrams as text, because the library that draws them would come from another host."""
    app.add_lexer("mermaid", TextLexer)
