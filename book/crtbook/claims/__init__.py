"""What holds up: every claim of the three papers, what our numbers say of it, and the verdict.

>>> from crtbook.claims import rules
>>> rules.lower([0.8, 0.9, 0.85], 1.0).verdict
'agrees'
"""

from crtbook.claims.figures import attack_verdicts, claims, figure_6, judged
from crtbook.claims.rules import CLOSE, UNTOLD, VERDICTS

__all__ = ["CLOSE", "UNTOLD", "VERDICTS", "attack_verdicts", "claims", "figure_6", "judged"]
"""The parts that a results table of one's own needs; the ledger is
:func:`crtbook.claims.ledger.ledger`."""
