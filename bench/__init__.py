"""Measures devhost and compares the results with its targets: ``python -m bench`` (or ``make bench``)."""
