"""Files that come with the package: data, and page templates."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

TEMPLATE_FOLDER = resources.files("crtlib.text") / "templates"
"""The data and page templates that come with the library."""


def read_package_file(name: str, folder: Traversable = TEMPLATE_FOLDER) -> str:
    """The text of a file in a ``folder`` of a package: data, or a page template."""
    return (folder / name).read_text("utf-8")


def fill_page(page: str, folder: Traversable = TEMPLATE_FOLDER, /, **values: Any) -> str:
    """A page template in a ``folder``, filled with its values; in HTML each value is escaped."""
    import jinja2  # needed only to write a page

    pages = jinja2.Environment(
        autoescape=page.endswith(".html"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return pages.from_string(read_package_file(page, folder)).render(values).rstrip()
