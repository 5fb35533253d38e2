"""The sections of a profile: what each chapter and each sweep may be asked.

A new section is one class in one of these modules, decorated with its name, and its values in each
file of ``profiles``; its notebook reads ``settings = parameters(globals(), "name")``.

>>> SECTIONS["amplification"].__name__
'Amplification'
"""

from crtbook.sections import chapters, crt, leakage, secrets
from crtbook.sections.base import SECTIONS

__all__ = ["SECTIONS", "chapters", "crt", "leakage", "secrets"]
