"""Texts and manifests that a person has read and found right; a difference is shown as such.

`SPECMODEL_GOLDEN=write pytest tests/golden` writes them anew, to be read again before they are committed.
"""
