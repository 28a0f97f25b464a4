# SPDX-License-Identifier: Apache-2.0
"""``python -m veilwood``: the command line."""

import sys

from veilwood.cli.main import main

sys.exit(main())
