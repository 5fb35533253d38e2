"""The version of the distribution, the only place that has it."""

__version__ = "0.3.0"
