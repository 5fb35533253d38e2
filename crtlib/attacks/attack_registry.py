"""All attacks by name: those of this library, and those that other packages add.

Another package adds an attack by an entry point in the group ``crtlib.attacks`` that names a module
(or the attack itself) in which :func:`crtlib.attacks.attack.register_attack` is called:

.. code-block:: toml

    [project.entry-points."crtlib.attacks"]
    my_attack = "my_package.my_attack"

A script or notebook calls :func:`crtlib.attacks.attack.register_attack` itself, before
:func:`all_attacks`.

>>> [attack.name for attack in all_attacks().values()][:2]
['membership', 'exposure']
"""

from __future__ import annotations

import functools

from crtlib.attacks import exposure, inference, membership, membership_scores
from crtlib.attacks.attack import ATTACKS, Attack
from crtlib.plugins import load_plugins

ATTACK_ENTRY_POINTS = "crtlib.attacks"
BUILT_IN_ATTACKS = (
    membership.MEMBERSHIP_ATTACK,
    exposure.EXPOSURE_ATTACK,
    membership_scores.MEMBERSHIP_SCORES_ATTACK,
    inference.INFERENCE_ATTACK,
)
"""The order in which they are measured and appear in a table."""


def all_attacks() -> dict[str, Attack]:
    """Every registered attack by name, this library's first. The first call loads entry points."""
    _load_plugin_attacks()
    built_in = {attack.name: attack for attack in BUILT_IN_ATTACKS}
    return built_in | {name: attack for name, attack in ATTACKS.items() if name not in built_in}


@functools.cache
def _load_plugin_attacks() -> None:
    load_plugins(ATTACK_ENTRY_POINTS)
