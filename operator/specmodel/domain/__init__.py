"""What we know and what we want, as pure values and functions: no clock, no log, no network, no files."""
