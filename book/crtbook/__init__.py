"""The companion: studies of the papers, their sweep and store, recorded tables, claims, figures.

>>> from crtbook import tables
>>> "tuning" in tables.names()
True
"""
