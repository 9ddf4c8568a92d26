"""Promises that the repository makes about itself."""
