"""Sphinx settings: pages in Markdown, warnings are errors in the nox session."""

from __future__ import annotations

project = "mlxcheck"
author = "The mlxcheck authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
html_theme = "alabaster"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
