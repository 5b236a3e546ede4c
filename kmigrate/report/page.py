"""The environment of the templates of all pages: `page.html.jinja` has the frame, `macros.html.jinja` the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kmigrate.model.words import one_line
from kmigrate.report.check import printable

__all__ = ["page_environment"]


def page_environment() -> Environment:
    """Return the environment of the templates: every text is escaped and stays on one line."""
    environment = Environment(
        autoescape=True,
        finalize=_printed,
        keep_trailing_newline=True,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["figure"] = "{:,}".format
    return environment


def _printed(value: Any) -> Any:
    """Return a text without characters on which a browser would act; markup of our own stays."""
    return printable(one_line(value)) if isinstance(value, str) and not isinstance(value, Markup) else value
