"""Every claim of the three papers, what our numbers show about it, and the verdict.

>>> from crtbook.claims import statistics
>>> statistics.decide_verdict(statistics.judge_mean([0.8, 0.9, 0.85], side="below", line=1.0))
'agrees'
"""
