"""What installed packages add: they name it by entry points, which are loaded when it is needed."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any


def load_plugins(group: str) -> list[tuple[EntryPoint, Any]]:
    """What installed packages name by the entry points of a group, such as ``crtlib.attacks``, each
    with its entry point.

    Raises:
        ValueError: As :func:`load_plugin`.
    """
    return [(point, load_plugin(point)) for point in entry_points(group=group)]


def load_plugin(point: EntryPoint) -> Any:
    """What an entry point names. Raises ``ValueError``, in a line that names the package, where it
    cannot be loaded."""
    try:
        return point.load()
    except Exception as error:  # somebody else's code may fail in any way
        raise broken_plugin(point, f"{type(error).__name__}: {error}") from error


def broken_plugin(point: EntryPoint, why: str) -> ValueError:
    """The error for an entry point whose package must be repaired or removed."""
    package = f"the package {point.dist.name}" if point.dist else "a package without a name"
    return ValueError(
        f"{point.group}={point.name!r}: cannot be loaded from {package} ({why}); repair or "
        "uninstall it"
    )
