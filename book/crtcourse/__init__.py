"""The course: exercises that check themselves, and labs that are graded.

>>> check("ex-dp-prior", 0.0267)
✓ right: ex-dp-prior
"""

from crtcourse.exercises import Result, check, hint

__all__ = ["Result", "check", "hint"]
