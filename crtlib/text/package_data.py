"""Files that come with the package: data, and pages to be filled."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

TEMPLATE_FOLDER = resources.files("crtlib.text") / "templates"
"""Data and pages that come with the library."""


def read_package_file(name: str, folder: Traversable = TEMPLATE_FOLDER) -> str:
    """A file of a ``folder`` of a package: data, or a page to be filled."""
    return (folder / name).read_text("utf-8")


def fill_page(page: str, folder: Traversable = TEMPLATE_FOLDER, /, **values: Any) -> str:
    """A page of a ``folder`` with its values; in HTML each of them is escaped."""
    import jinja2  # only what writes a page needs it

    pages = jinja2.Environment(
        autoescape=page.endswith(".html"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return pages.from_string(read_package_file(page, folder)).render(values).rstrip()
