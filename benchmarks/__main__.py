"""``python -m benchmarks [FIGURE ...]`` or ``python -m benchmarks compare A.json B.json``."""

import sys

from benchmarks.environment import prepare


def main() -> int:
    """Settings first: numpy reads them when it is imported."""
    prepare()
    from benchmarks import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
