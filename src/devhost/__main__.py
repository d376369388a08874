"""``python -m devhost``: the same as the ``devhost`` program."""

from devhost.cli import main

main()
