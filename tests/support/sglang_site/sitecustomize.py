"""Let every Python process of SGLang's server start on Linux, where there is no Metal.

Python imports a module of this name at its start. With this folder and the checkout on
``PYTHONPATH``, the server and what it spawns get what `tests.support.sglang_linux` does, when
they import SGLang and not before: the stand-ins, and a check for Metal that does not look.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence

_RUNTIME = "sglang.srt.hardware_backend.mlx.runtime"
"""The module that refuses MLX where Torch has no MPS device and MLX no Metal."""


class _Finder(importlib.abc.MetaPathFinder):
    """Prepares at the first import of SGLang, and opens the gate of its MLX backend."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the one module that is changed; leave all others to those who come next."""
        if name == "sglang" and name not in sys.modules:
            from tests.support import sglang_linux

            sglang_linux.prepare()
        if name != _RUNTIME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Opened(spec.loader)
        return spec


class _Opened(importlib.abc.Loader):
    """Loads the gate, and takes its guard away."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Create it as it is created anyway."""
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run it, and let nothing be validated."""
        self._loader.exec_module(module)
        module.__dict__["_validate_runtime"] = lambda: None


if sys.platform != "darwin":
    sys.meta_path.insert(0, _Finder())
