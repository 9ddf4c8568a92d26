"""`python -m specmodel.crd`."""

import sys

from specmodel.crd.main import main

sys.exit(main())
