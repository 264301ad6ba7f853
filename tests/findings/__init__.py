"""Defects of released engines that mlxcheck found; each test reports itself once it passes."""
