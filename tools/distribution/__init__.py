"""Builds the wheels and source archives of a release, checks them, and installs them in a new environment."""
