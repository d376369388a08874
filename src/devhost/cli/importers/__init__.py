"""Configurations of other device plugins → devhost.yaml. One module for each plugin."""
