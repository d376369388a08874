"""Verdicts: files by which people and other programs take devices out of service.

Only ``follower`` is imported on a node without the directory of verdicts.
"""
