"""Converts configurations of other device plugins to devhost.yaml. One module for each plugin."""
