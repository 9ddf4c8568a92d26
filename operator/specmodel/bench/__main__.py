"""`python -m specmodel.bench`: the same as `specmodel bench`, for an image that holds no other command."""

from __future__ import annotations

import sys

from specmodel.bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
