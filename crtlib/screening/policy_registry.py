"""The policies that packages register: how a name becomes a policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from crtlib.screening.policy import Policy

PolicyFactory = Callable[[str], Policy]


@dataclass(frozen=True)
class PolicyMaker:
    """How a name becomes a policy. ``takes`` is as in :func:`register_policy`."""

    name: str
    takes: str
    make: PolicyFactory
    learned: bool = False


REGISTERED_MAKERS: dict[str, PolicyMaker] = {}
"""The makers registered so far; :func:`crtlib.screening.policy_names.available_policies` has the
names of all policies."""


def register_policy(
    name: str, takes: str = "", *, learned: bool = False
) -> Callable[[PolicyFactory], PolicyFactory]:
    """Make a policy available by ``name`` on every command line and in every setting.

    A package of your own registers policies when it is imported. It can also do so without being
    imported, through the entry point group ``crtlib.policies``: the names there are those of
    policies, the values such functions.

    Args:
        name: Lower-case letters, digits and _.
        takes: What follows the name: "" for nothing, ":FILE" if it must, "[:FILE]" if it may.
        learned: Whether the policy was taught from labels, as in :class:`Policy`, for those who
            must know before it is made.

    Returns:
        A decorator for the function that makes the policy from what follows the colon.

    Raises:
        ValueError: For a name with other characters.

    Guarantee:
        A policy that was taught is known as such by its name, so only other labels judge it. Test:
        ``tests/screening/test_own_policies.py::
        test_a_strangers_policy_that_was_taught_is_known_by_its_name``.

    >>> @register_policy("shouting", ":WORD")
    ... def _(word):
    ...     return Policy(f"shouting:{word}", lambda points: [() for p in points])
    >>> REGISTERED_MAKERS.pop("shouting").make("hey").name
    'shouting:hey'
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name={name!r}: must be lower-case letters, digits and _")

    def add(make: PolicyFactory) -> PolicyFactory:
        REGISTERED_MAKERS[name] = PolicyMaker(name, takes, make, learned)
        return make

    return add
