"""The command line: `specmodel COMMAND`. Reads files and prints; decides nothing itself."""
