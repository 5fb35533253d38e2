"""The library, module by module: what ``make reference`` builds in ``_build/reference/html``.

autoapi reads source with astroid, which follows an import to infer what a name is. For torch and
transformers it would read thousands of files, for minutes, and the pages would be the same. So
astroid reads only this project's modules and those of Python itself.
"""

import re
import sys
from pathlib import Path

from astroid.exceptions import AstroidImportError
from astroid.manager import AstroidManager

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / name for name in ("crtlib", "confide", "book/crtbook", "book/crtcourse")]

project = "crtlib"
copyright = "2026, the crtlib contributors"
html_theme = "sphinx_book_theme"
html_title = "crtlib, module by module"
extensions = ["autoapi.extension", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Guarantee"]
root_doc = "autoapi/index"
suppress_warnings = [
    "autoapi.python_import_resolution",  # for a name that is assigned several times
    "ref.python",  # an annotation names a type by its last name, which two modules may share
]
autoapi_dirs = [str(package) for package in PACKAGES]
autoapi_keep_files = False
autoapi_member_order = "bysource"
autoapi_options = ["members", "undoc-members", "show-inheritance"]


def escape(line):
    """A line of reStructuredText in which lone stars and bars are not markup."""
    if line.lstrip().startswith(("..", ">>>", ":")):
        return line
    pieces = re.split(r"(``.*?``)", line)
    for i in range(0, len(pieces), 2):
        text = re.sub(r"\|(?=\S)|(?<=\S)\|", r"\\|", pieces[i])
        pieces[i] = re.sub(r"(?<![\w*\\])(\*{1,2})(?=\w)(?!.*\w\1)", r"\\\1", text)
    return "".join(pieces)


def item(found):
    """The sentence of an option, as a line of a list."""
    indent, option, text = found.groups()
    return f"\n\n{indent}* ``{option}``: {' '.join(text.split())}\n"


OPTION = re.compile(r"\n( +)(--[^\n:]+|[A-Z]{2,}): ([^\n]*(?:\n\1 +[^\n]*)*)")


def plain_docstrings(app, docname, source):
    """In docstrings, make ``*args`` and ``|R|`` literal, and the sentences of options a list."""
    source[0] = "\n".join(map(escape, OPTION.sub(item, source[0]).split("\n")))


def setup(app):
    """Called by Sphinx."""
    whole = AstroidManager.ast_from_module_name
    ours = {*sys.stdlib_module_names, *(package.name for package in PACKAGES)}

    def read(self, modname, *args, **options):
        if (modname or "").partition(".")[0] not in ours:
            raise AstroidImportError("{modname}: is not ours", modname=modname)
        return whole(self, modname, *args, **options)

    AstroidManager.ast_from_module_name = read
    app.connect("source-read", plain_docstrings)
