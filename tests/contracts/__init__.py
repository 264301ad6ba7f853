"""Tests of the contracts room."""
