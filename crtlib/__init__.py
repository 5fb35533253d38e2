"""Confidential language modelling: screen, train, account, attack and report.

>>> import crtlib
>>> crtlib.__version__
'0.1.0'
"""

__version__ = "0.1.0"
