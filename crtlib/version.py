"""The version of the distribution, which is written only here."""

__version__ = "0.3.0"
