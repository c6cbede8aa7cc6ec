"""The version, where any ring may read it."""

__version__ = "0.1.0"
