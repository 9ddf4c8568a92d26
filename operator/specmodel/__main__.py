"""`python -m specmodel`, where the program is not on the PATH."""

import sys

from specmodel.cli.main import main

sys.exit(main())
