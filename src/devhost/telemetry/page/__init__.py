"""The status page: what ``devhost status`` shows, live in a browser.

``content`` and the modules below it convert a status document to HTML without side effects; ``serving``
makes routes of the HTTP server from it. ``page.css`` and ``page.js`` are embedded in the page, so that it
loads nothing else.
"""
