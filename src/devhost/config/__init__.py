"""From YAML to settings, with a position for every diagnostic.

``document`` turns bytes into nodes, ``language`` defines what the file may contain, ``reader`` reads it,
``resources`` reads what depends on a backend, ``loader`` does all of it. One
:class:`~devhost.backend.errors.ConfigError` carries all diagnostics. ``schema`` prints the language,
``difference`` compares settings.

Import from here: ``load``, ``loads``, ``loader``, ``schema``, ``difference``, ``last_good``.
May import: ``discovery`` and every package below it.
"""

from __future__ import annotations

from .loader import DEFAULT, CatalogFor, backend_paths, loads, read
from .loader import load_settings as load

__all__ = ["DEFAULT", "CatalogFor", "backend_paths", "load", "loads", "read"]
