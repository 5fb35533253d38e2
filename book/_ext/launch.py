"""Sphinx extension: launch buttons (Binder, Colab) on every chapter, and links to its source and to
the issues, once the book has an address.

The address is ``repository: url:`` in ``_config.yml``, and stands nowhere else. Where it is empty
no page has a button, as none could work. Codespaces reads ``.devcontainer`` by itself.
"""

BUTTONS = {
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
    "notebook_interface": "jupyterlab",
}


def add_buttons(app, config):
    """Give the theme its buttons where it has a repository."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options["launch_buttons"] = {**options.get("launch_buttons", {}), **BUTTONS}
        for link in ("repository", "edit_page", "issues"):
            options[f"use_{link}_button"] = True


def setup(app):
    """Before the theme reads its options."""
    app.connect("config-inited", add_buttons, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
