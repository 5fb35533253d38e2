"""Sphinx extension: each chapter states whether its outputs are recorded or yours.

The chapters of ``book/chapters`` hold recorded outputs. Where the environment variable
``BOOK_LIVE`` names a folder (``book/build.py`` sets it), a chapter in this folder, which was run on
this machine, replaces the recorded one. Without the variable, as in ``jupyter-book build book/``,
every page is recorded. A page is read again when its notebook differs from the last time.

Pages have launch buttons (Binder, Colab) and links to their source and to the issues once the book
has an address: ``repository: url:`` in ``_config.yml``, the only place that states it. Where it is
empty no page has a button, as none could work. Codespaces reads ``.devcontainer`` by itself.

No page needs a network. Thebe, which Jupyter Book loads whether or not it is used, names a script
on a CDN in every page, so it is removed from the pages.
"""

import datetime
import gc
import hashlib
import json
import os
import re
from pathlib import Path

import sphinx_thebe

RECORDED = "Recorded at the `{profile}` profile on {date} ([how](../reproducing.md)). "
RECORDED += "To see your own: `make book LIVE={name}`."
YOURS = "**Yours:** run on this machine at the `{profile}` profile on {date} "
YOURS += "([how](../reproducing.md)). The recorded outputs: `make published`."

BUTTONS = {
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
    "notebook_interface": "jupyterlab",
}
PRELOAD = re.compile(r'<link\b[^>]*rel="preload"[^>]*\.woff2"[^>]*>')


def find_executed(app, docname):
    """(whether it is recorded, the path) of the notebook from which a chapter's page is made."""
    name = docname.removeprefix("chapters/") + ".ipynb"
    live = Path(os.environ.get("BOOK_LIVE", "")) / name
    if "BOOK_LIVE" in os.environ and live.is_file():
        return False, live
    return True, Path(app.srcdir) / "chapters" / name


def hash_shown(app, docname):
    """The hash of what is shown of a chapter."""
    recorded, path = find_executed(app, docname)
    return f"{recorded} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def list_outdated(app, env, added, changed, removed):
    """The chapters whose notebook has changed its place."""
    chapters = (d for d in env.found_docs if d.startswith("chapters/"))
    return [d for d in chapters if env.metadata.get(d, {}).get("shown") != hash_shown(app, d)]


def read_chosen_notebook(app, docname, source):
    """Read the notebook that is to be shown, and add a line below its title."""
    if not docname.startswith("chapters/"):
        return
    recorded, path = find_executed(app, docname)
    notebook = json.loads(path.read_text("utf-8"))
    notes = notebook["metadata"]["papermill"]
    date = datetime.datetime.fromisoformat(notes["start_time"])
    line = (RECORDED if recorded else YOURS).format(
        profile=notes["parameters"].get("profile", "quick"),
        date=f"{date.day} {date:%B %Y}",
        name=path.stem,
    )
    title, _, rest = "".join(notebook["cells"][0]["source"]).partition("\n")
    notebook["cells"][0]["source"] = f"{title}\n\n:::{{div}} edition\n{line}\n:::\n{rest}"
    source[0] = json.dumps(notebook)
    app.env.metadata[docname]["shown"] = hash_shown(app, docname)


def add_buttons(app, config):
    """Give the theme its buttons where it has a repository."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options["launch_buttons"] = {**options.get("launch_buttons", {}), **BUTTONS}
        for link in ("repository", "edit_page", "issues"):
            options[f"use_{link}_button"] = True


def drop_preloads(app, exception):
    """Remove the theme's preloads of icon fonts from the pages: a browser that reads from the disk
    refuses them with an error, and the style sheet loads the same fonts."""
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text("utf-8")
            if (without := PRELOAD.sub("", text)) != text:
                page.write_text(without, "utf-8")


def drop_thebe(app, config):
    """Remove thebe's script and its settings from the pages."""
    parts = (sphinx_thebe.init_thebe_core, sphinx_thebe.update_thebe_context)
    for listeners in app.events.listeners.values():
        listeners[:] = [listener for listener in listeners if listener.handler not in parts]


def setup(app):
    """Register it. Notes are in the environment's metadata, so pages may be built in parallel."""
    gc.set_threshold(200_000, 20, 100)  # documents' trees live long: saves a ninth of a build
    app.connect("config-inited", add_buttons, priority=100)  # before the theme reads its options
    app.connect("config-inited", drop_thebe)
    app.connect("env-get-outdated", list_outdated)
    app.connect("source-read", read_chosen_notebook)
    app.connect("build-finished", drop_preloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
