"""`python -m attnprior` is the `attnprior` command."""

import sys

from attnprior.cli import main

if __name__ == "__main__":
    sys.exit(main())
