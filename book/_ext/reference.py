"""The reference pages are made of the source of this library and of no other.

autoapi reads source with astroid, which follows an import to infer what a name is: of torch and
transformers it would read thousands of files, for minutes, and the pages would be the same.
"""

from __future__ import annotations

import sys
from typing import Any

from astroid.exceptions import AstroidImportError
from astroid.manager import AstroidManager


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx: astroid reads modules of crtlib and of Python's own only."""
    whole = AstroidManager.ast_from_module_name

    def ours(self: Any, modname: str | None, *given: Any, **options: Any) -> Any:
        top = (modname or "").partition(".")[0]
        if top not in ("crtlib", "crtbook", "crtcourse") and top not in sys.stdlib_module_names:
            raise AstroidImportError("{modname}: is not ours", modname=modname)
        return whole(self, modname, *given, **options)

    AstroidManager.ast_from_module_name = ours
    return {"parallel_read_safe": True}
