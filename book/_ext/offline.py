"""Sphinx extension: pages that need no network, and docstrings that read as they are written.

Interactive figures load one shared copy, ``../_static/vendor/plotly.min.js``. Copying it from the
installed package at build time keeps five megabytes of JavaScript out of the repository. Thebe,
which Jupyter Book loads whether or not it is used, names a script on a CDN in every page; its
part in the pages is switched off. In docstrings, ``*args`` and ``|R|`` mean themselves.
"""

import re
import shutil
from pathlib import Path

import plotly
import sphinx_thebe


def copy_plotly(app, exception):
    """Copy plotly's own bundle to ``_static/vendor`` once the HTML is written."""
    if exception is None and app.builder.format == "html":
        vendor = Path(app.outdir) / "_static" / "vendor"
        vendor.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", vendor)


def drop_thebe(app, config):
    """Take thebe's script and its settings out of the pages."""
    parts = (sphinx_thebe.init_thebe_core, sphinx_thebe.update_thebe_context)
    for listeners in app.events.listeners.values():
        listeners[:] = [listener for listener in listeners if listener.handler not in parts]


def escape(line):
    """A line of reStructuredText whose lone stars and whose bars are no markup."""
    if line.lstrip().startswith(("..", ">>>", ":")):
        return line
    pieces = re.split(r"(``.*?``)", line)
    for i in range(0, len(pieces), 2):
        text = re.sub(r"\|(?=\S)|(?<=\S)\|", r"\\|", pieces[i])
        pieces[i] = re.sub(r"(?<![\w*\\])(\*{1,2})(?=\w)(?!.*\w\1)", r"\\\1", text)
    return "".join(pieces)


def plain_docstrings(app, docname, source):
    """Escape what docstrings do not mean as markup, before a page of the library is parsed."""
    if docname.startswith("autoapi/"):
        source[0] = "\n".join(map(escape, source[0].split("\n")))


def setup(app):
    """Register them; they hold no state, so pages may be read and written in parallel."""
    app.connect("config-inited", drop_thebe)
    app.connect("source-read", plain_docstrings)
    app.connect("build-finished", copy_plotly)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
