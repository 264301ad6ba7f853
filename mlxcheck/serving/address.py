"""Where a server is, and who asks."""

from __future__ import annotations

import base64
import os
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

__all__ = ["KEY_VARIABLE", "authorization", "is_loopback", "shown_url", "split_url"]

KEY_VARIABLE = "MLXCHECK_API_KEY"
"""Environment variable with the key that goes into each request's Authorization header."""


def split_url(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises:
        UsageError: If it is none, or has a query.
    """
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        good = good and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:  # a port that is no number, or brackets that do not close
        good = False
    if not good:
        msg = f"no URL of a server: {shown_url(url)!r}. Expected http://HOST:PORT or https://HOST."
        raise UsageError(msg)
    return parts


def shown_url(url: str) -> str:
    """Return a URL as it may be shown: without a user and password."""
    scheme, slashes, rest = url.rpartition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def authorization(parts: SplitResult) -> dict[str, str]:
    """Return the header for the key in the environment, else for the URL's own user."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key:
        if not (key.isascii() and key.isprintable()):
            msg = f"{KEY_VARIABLE} holds characters that no header may hold."
            raise UsageError(msg)
        return {"Authorization": f"Bearer {key}"}
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def is_loopback(host: str) -> bool:
    """Tell whether *host* is this machine, by its name alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
