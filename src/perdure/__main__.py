"""`python -m perdure` is the `perdure` command."""

import sys

from perdure.cli import main

if __name__ == "__main__":
    sys.exit(main())
