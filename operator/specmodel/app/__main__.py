"""`python -m specmodel.app`: the operator without the rest of the command line."""

from __future__ import annotations

import sys

from specmodel.app.main import main

sys.exit(main())
