"""Sphinx extension: put the installed plotly.min.js beside the pages, so that they need no network.

Interactive figures load one shared copy, ``../_static/vendor/plotly.min.js``. Copying it at build
time keeps five megabytes of generated JavaScript out of the repository.
"""

import shutil
from pathlib import Path

import plotly


def copy_plotly(app, exception):
    """Copy plotly's own bundle to ``_static/vendor`` once the HTML is written."""
    if exception is None and app.builder.format == "html":
        vendor = Path(app.outdir) / "_static" / "vendor"
        vendor.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", vendor)


def setup(app):
    """Register the copy; it holds no state, so pages may be read and written in parallel."""
    app.connect("build-finished", copy_plotly)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
