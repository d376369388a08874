"""Specifications of the Container Device Interface: content, files, and their removal."""
