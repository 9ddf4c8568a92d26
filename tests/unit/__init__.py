"""Tests of single parts: no cluster, no network beyond 127.0.0.1."""
