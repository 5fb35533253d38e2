"""All attacks by name: those of this library, and those that other packages add.

>>> [attack.name for attack in known().values()][:2]
['membership', 'exposure']

Another package adds an attack by an entry point of the group ``crtlib.attacks`` that names a module
(or the attack itself) in which :func:`crtlib.attacks.attack.register` is called:

.. code-block:: toml

    [project.entry-points."crtlib.attacks"]
    my_attack = "my_package.my_attack"

A script or notebook calls :func:`register` itself, before it asks.
"""

from __future__ import annotations

import functools
from importlib import metadata

from crtlib.attacks import exposure, membership
from crtlib.attacks.attack import ATTACKS, Attack

GROUP = "crtlib.attacks"
OURS = (membership.MEMBERSHIP, exposure.ATTACK, membership.OTHER_SCORES, membership.INFERENCE)
"""In this order they are measured, and stand in a table."""


def known() -> dict[str, Attack]:
    """Every registered attack by name, ours first. Entry points are loaded at the first call."""
    _plugins()
    ours = {attack.name: attack for attack in OURS}
    return ours | {name: attack for name, attack in ATTACKS.items() if name not in ours}


@functools.cache
def _plugins() -> None:
    """Import what other packages have announced. One that cannot be imported is named."""
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            raise ValueError(f"{GROUP}={point.name!r}: must be importable: {error}") from error
