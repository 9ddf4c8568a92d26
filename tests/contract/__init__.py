"""Tests of what one program promises another over a wire."""
