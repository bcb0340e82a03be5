"""``python -m benchmarks [FIGURE ...]``, or with ``page`` or ``compare`` on stored runs; see README.md."""

import sys

from benchmarks.environment import prepare


def main() -> int:
    """Settings first: numpy reads them when it is imported."""
    prepare()
    from benchmarks import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
