"""A policy: every run of digits is a secret."""

import re

from crtlib.screening.policy import Policy
from crtlib.screening.policy_registry import register_policy
from crtlib.text.records import Secret


def flag(points):
    return [[Secret("number", *m.span()) for m in re.finditer(r"\d+", p.text)] for p in points]


@register_policy("toy_policy")
def make(_):
    return Policy("toy_policy", flag)
