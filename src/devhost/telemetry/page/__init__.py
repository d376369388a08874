"""The status page: what ``devhost status`` shows, for a browser, and live.

``skeleton`` and the modules below it turn a status document into HTML and touch nothing else; ``serving``
makes routes of the HTTP server of it. ``page.css`` and ``page.js`` are part of the page, so that it needs
nothing from anywhere else.
"""
