"""Sphinx extension: formulas as MathML, for the EPUB, whose readers run no script."""

import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import render


def inline(self, node):
    """A formula within a line."""
    self.body.append(render.formula(node.astext(), {}))
    raise nodes.SkipNode


def display(self, node):
    """A formula of its own, with its number."""
    number = f" ({node['number']})" if node.get("number") else ""
    formula = render.formula(node.astext(), {"display_mode": True})
    self.body.append(self.starttag(node, "div", CLASS="math") + formula + number + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
