"""Pages from templates: every value is escaped, style and script are inside, no network is asked.

>>> page("base.html.j2").count("<style>")
1
>>> as_json({"text": "</script>"})
Markup('{"text":"\\\\u003c/script>"}')
"""

from __future__ import annotations

import json
from typing import Any

import jinja2
from markupsafe import Markup

_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("crtlib.reports"), trim_blocks=True, lstrip_blocks=True,
    autoescape=jinja2.select_autoescape(["html.j2", "html"], default_for_string=True),
    undefined=jinja2.StrictUndefined,
)  # fmt: skip


def page(template: str, **values: Any) -> str:
    """A template of this room with its values; in HTML each of them is escaped."""
    return _PAGES.get_template(template).render(**values)


def as_json(value: Any) -> Markup:
    """JSON that can stand in a ``<script>`` of a page: no text in it can close the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    escapes = (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))
    for letter, code in escapes:
        text = text.replace(letter, code)
    return Markup(text)
