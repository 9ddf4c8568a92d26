"""What each checked release of vLLM takes on its command line: recorded data and their reader. Knows no other layer.

`vllm.json` is made by `make engine-flags` from the releases' own parsers; `traps.json` is written by hand: what a
parser accepts and an engine does not, and what to use in place of what is gone.
"""
