"""Pages from templates: values are escaped, style and script are inline, no network is needed.

>>> render_template("base.html.j2").count("<style>")
1
>>> str(embed_json({"text": "</script>"}))
'{"text":"\\\\u003c/script>"}'
>>> str(render_bold("**<b>** ends"))
'<strong>&lt;b&gt;</strong> ends'
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

import jinja2
from markupsafe import Markup, escape

from crtlib.intervals import round_up_to_figures

_PAGE_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("confide.reports"), trim_blocks=True, lstrip_blocks=True,
    autoescape=jinja2.select_autoescape(["html.j2"], disabled_extensions=["md.j2"], default=True),
    keep_trailing_newline=True,
)  # fmt: skip


def render_bold(text: str) -> Markup:
    """A plain sentence as HTML, in which two stars enclose bold text and back quotes code."""
    html = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", html))


def format_number(value: Any) -> str:
    """A number as a table shows it; a dash for none."""
    if value is None or isinstance(value, jinja2.Undefined):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_bound(value: Any) -> str:
    """A number that must not be understated, rounded up to four figures; a dash for none."""
    if not isinstance(value, float) or math.isinf(value):
        return format_number(value)
    rounded = round_up_to_figures(value, 4).normalize()
    return f"{rounded:f}" if not rounded or rounded >= Decimal("1e-4") else f"{rounded:.3e}"


def field_heading(name: str) -> str:
    """A field's name as a heading."""
    return name.replace("_", " ")


def escape_markdown(value: Any) -> str:
    """A value as plain text in Markdown: it cannot end a cell or a row, nor become a link or
    HTML."""
    return " ".join(re.sub(r"[\\`*\[\]<>&|\"]", r"\\\g<0>", str(value)).split())


def quote_yaml(text: str) -> str:
    """A text as a YAML scalar that cannot be taken for anything else (JSON is YAML)."""
    return json.dumps(text, ensure_ascii=False)


_PAGE_TEMPLATES.filters |= {
    "bold": render_bold,
    "number": format_number,
    "bound": format_bound,
    "words": field_heading,
    "cell": escape_markdown,
    "yaml": quote_yaml,
    "percent": lambda share: f"{100 * share:.1f} %",
}


def render_template(template: str, **values: Any) -> str:
    """Render a template of this package with its values; in HTML each value is escaped."""
    return _PAGE_TEMPLATES.get_template(template).render(**values)


def embed_json(value: Any) -> Markup:
    """JSON that is safe inside a ``<script>`` of a page: no text in it can close the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    escapes = (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))
    for letter, code in escapes:
        text = text.replace(letter, code)
    return Markup(text)
