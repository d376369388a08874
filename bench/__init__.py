"""Measures devhost against the figures it promises: ``python -m bench`` (or ``make bench``)."""
