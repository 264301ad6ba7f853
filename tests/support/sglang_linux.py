"""Make SGLang's MLX runner importable on Linux, where there is no Metal.

SGLang's configuration modules import torchvision at their top level, for the image
processors of multimodal models. The MLX runner never calls any of it, and torchvision's
wheels do not load beside a CPU build of torch. So the names that SGLang imports are put
into ``sys.modules`` as stand-ins that can be imported and not used.

On a Mac SGLang is installed as its own documentation says, and `prepare` does nothing.
"""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["ENGINE", "missing", "prepare", "skip_where_missing"]

ENGINE = "sglang.srt.hardware_backend.mlx.model_runner"
"""The module that holds the runner."""

_MODULES = (
    "torchvision",
    "torchvision.io",
    "torchvision.io.image",
    "torchvision.ops",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
    "torchvision.utils",
)


class InterpolationMode(enum.Enum):
    """The members that SGLang names when it is imported, with torchvision's own values."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _StandIn(types.ModuleType):
    """A module whose every attribute exists and fails when it is called."""

    def __getattr__(self, name: str) -> type:
        # A dunder that is not there must stay so: the import system, inspect and pickle
        # ask for many of them and act on what they get.
        if name.startswith("__"):
            raise AttributeError(name)
        what = f"{self.__name__}.{name}"

        def refuse(*_args: object, **_kwargs: object) -> NoReturn:
            msg = f"{what} was called, but torchvision is only a stand-in here"
            raise NotImplementedError(msg)

        # A class, because SGLang uses some of these names in annotations and as bases.
        made = type(name, (), {"__init__": refuse, "__module__": self.__name__})
        setattr(self, name, made)
        return made


def missing() -> str | None:
    """Say why SGLang's runner cannot be imported here, or None where it can."""
    # The submodule is asked for, since any folder called "sglang" on the path, such as
    # one of tests, passes for a package of that name.
    for package in ("sglang", "torch", "mlx_lm"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        return "sglang is not installed"
    return None


def skip_where_missing(items: list[pytest.Item], folder: Path, session: str) -> None:
    """Skip the tests of a folder, and no others, where there is no SGLang.

    Args:
        items: All that were collected.
        folder: Whose tests need it.
        session: The nox session that installs it.
    """
    import pytest  # servers load this module too, and have no use for it

    why = missing()
    for item in items:
        if why is not None and folder in item.path.parents:
            reason = f"{why}; the nox session `{session}` installs it"
            item.add_marker(pytest.mark.skip(reason=reason))


def prepare() -> None:
    """Put the stand-ins in place; do nothing on a Mac, or where torchvision is installed."""
    if sys.platform == "darwin" or "torchvision" in sys.modules:
        return
    if importlib.util.find_spec("torchvision") is not None:
        return
    # transformers looks for torchvision once and remembers the answer. Asked now it
    # says no, and leaves its own image processors alone afterwards.
    from transformers.utils import is_torchvision_available

    is_torchvision_available()
    for name in _MODULES:
        _install(name)


def _install(name: str) -> None:
    """Put one stand-in into ``sys.modules`` and onto its parent."""
    module = _StandIn(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    module.__dict__["InterpolationMode"] = InterpolationMode
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
