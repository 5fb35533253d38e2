"""Figures and tables of the book."""
