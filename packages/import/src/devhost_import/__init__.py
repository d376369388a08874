"""Converts configurations of other device plugins to devhost.yaml: one module for each plugin.

The first sentence of its docstring is the help of its command.
"""
