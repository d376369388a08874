"""``python -m devhost``: the same as the ``devhost`` program."""

from .cli import main

main()
