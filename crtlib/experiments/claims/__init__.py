"""What holds up: every claim of the three papers, what our numbers say of it, and the verdict.

>>> from crtlib.experiments.claims import rules
>>> rules.lower([0.8, 0.9, 0.85], 1.0).verdict
'agrees'
"""

from crtlib.experiments.claims.figures import attack_verdicts, claims, figure_6, judged
from crtlib.experiments.claims.rules import CLOSE, UNTOLD, VERDICTS

__all__ = ["CLOSE", "UNTOLD", "VERDICTS", "attack_verdicts", "claims", "figure_6", "judged"]
"""The parts that a results table of one's own needs; the ledger is
:func:`crtlib.experiments.claims.ledger.ledger`."""
