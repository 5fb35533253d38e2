"""Sphinx extension: each chapter says whether its outputs are recorded or yours.

The chapters of ``book/chapters`` hold recorded outputs. Where the environment variable
``BOOK_LIVE`` names a folder (``book/build.py`` sets it), a chapter that was run on this machine and
lies there takes the place of the recorded one; without it, as in ``jupyter-book build book/``,
every page is recorded. A page is read again where its notebook is another than the last time.
"""

import datetime
import hashlib
import json
import os
from pathlib import Path

RECORDED = "Recorded at the `{profile}` profile on {date} ([how](../reproducing.md)). "
RECORDED += "To see your own: `make book LIVE={name}`."
YOURS = "**Yours:** run on this machine at the `{profile}` profile on {date} "
YOURS += "([how](../reproducing.md)). The recorded outputs: `make published`."


def executed(app, docname):
    """(whether it is recorded, the path) of the notebook that a chapter's page is made of."""
    name = docname.removeprefix("chapters/") + ".ipynb"
    live = Path(os.environ.get("BOOK_LIVE", "")) / name
    if "BOOK_LIVE" in os.environ and live.is_file():
        return False, live
    return True, Path(app.srcdir) / "chapters" / name


def digest(app, docname):
    """Of what is shown of a chapter."""
    recorded, path = executed(app, docname)
    return f"{recorded} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def outdated(app, env, added, changed, removed):
    """The chapters whose notebook has changed places."""
    here = (d for d in env.found_docs if d.startswith("chapters/"))
    return [d for d in here if env.metadata.get(d, {}).get("shown") != digest(app, d)]


def chosen(app, docname, source):
    """Read the notebook that is to be shown, with a line below its title."""
    if not docname.startswith("chapters/"):
        return
    recorded, path = executed(app, docname)
    notebook = json.loads(path.read_text("utf-8"))
    made = notebook["metadata"]["papermill"]
    date = datetime.datetime.fromisoformat(made["start_time"])
    line = (RECORDED if recorded else YOURS).format(
        profile=made["parameters"].get("profile", "quick"),
        date=f"{date.day} {date:%B %Y}",
        name=path.stem,
    )
    title, _, rest = "".join(notebook["cells"][0]["source"]).partition("\n")
    notebook["cells"][0]["source"] = f"{title}\n\n:::{{div}} edition\n{line}\n:::\n{rest}"
    source[0] = json.dumps(notebook)
    app.env.metadata[docname]["shown"] = digest(app, docname)


def setup(app):
    """Its notes are in the environment's metadata, so pages may be read in parallel."""
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", chosen)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
