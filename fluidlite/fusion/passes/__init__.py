"""The passes: one file per pattern, each pass a function of that name that rewrites a `Graph`."""
