"""Speed of fluidlite, always against something measured in the same minute: ``python -m benchmarks --help``."""
