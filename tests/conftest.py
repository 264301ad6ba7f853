"""What all tests share."""

from __future__ import annotations

import signal

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and every child inherits it: Ctrl-C could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
