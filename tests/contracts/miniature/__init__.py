"""A small engine with a runner, a stub of it, and the code that uses them; see `test_stub`."""
