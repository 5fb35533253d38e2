"""Cells as HTML that stands alone: ``python book/render.py NAME`` makes one notebook a page.

Prose by markdown-it, formulas as MathML, figures as data, code coloured: nothing is fetched, so a
page can be mailed. The slides are made of the same pieces (``book/slides.py``).
"""

import functools
import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from latex2mathml import converter
from markdown_it import MarkdownIt
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import plain

BOOK = Path(__file__).resolve().parent

FORMATTER = HtmlFormatter(cssclass="code")
STYLE = """
:root{--ink:#1d2733;--faint:#5b6673;--card:#f5f7f9;--line:#c9d1d9;--accent:#0b5c94}
body{margin:0;color:var(--ink);background:#fff;font:17px/1.55 system-ui,sans-serif}
main{max-width:46rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.2}h1{font-size:1.8rem}a{color:var(--accent)}
img,svg{max-width:100%;height:auto}pre{overflow-x:auto;font-size:.82rem;line-height:1.4}
.code,.out{background:var(--card);padding:.6rem .8rem;border-radius:4px}.out pre{margin:0}
blockquote{margin:1rem 0;padding:.1rem 1rem;border-left:4px solid var(--accent);
background:var(--card)}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
details{margin:.8rem 0;padding:.3rem .8rem;border:1px solid var(--line);border-radius:4px}
@media print{table{display:table;font-size:.7rem}pre{white-space:pre-wrap}}
"""


def formula(text: str, options: dict[str, Any]) -> str:
    """A formula as MathML; as its source where it cannot be converted."""
    text = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", text)
    text = re.sub(r"\\(?:operatorname|mathrm)\{([^}]*)\}", r"\\mathrm{\1}", text)
    text = re.sub(r"(\\(?:ln|log)(?:_\w)?)(?![a-z({_])(?=\s*\\?[a-zA-Z])", r"\1\\,", text)
    text = text.replace("'", "\N{PRIME}")  # raised, it is a speck without a font for formulas
    display = "block" if options.get("display_mode") else "inline"
    try:
        return converter.convert(text, display=display)
    except Exception:  # whatever the converter cannot read is shown as it was written
        return f"<code>{html.escape(text)}</code>"


@functools.cache
def parser() -> MarkdownIt:
    """Markdown with tables, definition lists and formulas."""
    made = MarkdownIt("commonmark", {"html": True}).enable("table").use(deflist_plugin)
    return made.use(dollarmath_plugin, renderer=formula, allow_space=True)


def markdown(text: str) -> str:
    """Plain markdown (see :mod:`plain`) as HTML."""
    return parser().render(text)


def output(out: dict[str, Any]) -> str:
    """One output: a figure, a table, a text."""
    data = {k: "".join(v) if isinstance(v, list) else v for k, v in out.get("data", {}).items()}
    if "image/svg+xml" in data:
        return data["image/svg+xml"]
    if "image/png" in data:
        alt = html.escape(str(out.get("metadata", {}).get("alt", "Figure of this section")))
        return f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        return data["text/html"]
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    text = data.get("text/plain") or "".join(out.get("text", ""))
    return f'<div class="out"><pre>{html.escape(text)}</pre></div>' if text.strip() else ""


def code(source: str) -> str:
    """A coloured piece of Python."""
    return highlight(source, PythonLexer(), FORMATTER)


def cell(c: dict[str, Any]) -> str:
    """One cell: prose, or code with what it printed."""
    text = "".join(c["source"])
    if c["cell_type"] == "markdown":
        return markdown(text)
    tags = {*c["metadata"].get("tags", [])}
    shown = "".join(output(o) for o in c["outputs"] if o.get("name") != "stderr")
    if "remove-cell" in tags:
        return ""
    if "hide-input" in tags:
        return f"<details><summary>Code</summary>{code(text)}</details>{shown}"
    return code(text) + shown


def document(title: str, body: str, *, style: str = STYLE, script: str = "") -> str:
    """A whole page; its figures and sliders need nothing from outside."""
    css = style + FORMATTER.get_style_defs(".code")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{css}</style>{script}</head><body>{body}</body></html>"
    )


def page(notebook: dict[str, Any]) -> str:
    """A plain notebook as a page."""
    first = "".join(notebook["cells"][0]["source"])
    title = first.splitlines()[0].lstrip("# ")
    return document(title, f"<main>{''.join(map(cell, notebook['cells']))}</main>")


def main() -> None:
    """Write ``_build/page/NAME.html`` of the recorded chapter NAME, or of what papermill makes of
    it with the other arguments."""
    if len(sys.argv) < 2:
        sys.exit("NB: must name a notebook, as in make page NB=canary")
    name, *arguments = sys.argv[1:]
    out = BOOK.parent / "_build" / "page" / f"{name}.ipynb"
    try:
        plain.write(out.parent, [name])
    except ValueError as error:
        sys.exit(str(error))
    if arguments:
        command = [Path(sys.executable).parent / "papermill", BOOK.parent / "notebooks" / out.name]
        if code := subprocess.run([*command, out, *arguments], cwd=BOOK.parent).returncode:
            sys.exit(code)
    text = page(plain.read(out))
    out.with_suffix(".html").write_text(text, "utf-8")
    out.unlink()
    print(out.with_suffix(".html"))


if __name__ == "__main__":
    main()
