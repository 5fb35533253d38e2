"""Sphinx extension: pages that need no network.

Thebe, which Jupyter Book loads whether or not it is used, names a script on a CDN in every page;
its part in the pages is switched off.
"""

import gc
import re
from pathlib import Path

import sphinx_thebe

PRELOAD = re.compile(r'<link\b[^>]*rel="preload"[^>]*\.woff2"[^>]*>')


def drop_preloads(app, exception):
    """Take the theme's preloads of icon fonts out of the pages: from the disk a browser refuses
    them with an error, and the style sheet loads the same fonts."""
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text("utf-8")
            if (without := PRELOAD.sub("", text)) != text:
                page.write_text(without, "utf-8")


def drop_thebe(app, config):
    """Take thebe's script and its settings out of the pages."""
    parts = (sphinx_thebe.init_thebe_core, sphinx_thebe.update_thebe_context)
    for listeners in app.events.listeners.values():
        listeners[:] = [listener for listener in listeners if listener.handler not in parts]


def setup(app):
    """Register them; they hold no state, so pages may be read and written in parallel."""
    gc.set_threshold(200_000, 20, 100)  # trees of documents live long: a ninth of a build's time
    app.connect("config-inited", drop_thebe)
    app.connect("build-finished", drop_preloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
