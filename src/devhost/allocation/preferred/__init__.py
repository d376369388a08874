"""Preferred allocation across resources."""
