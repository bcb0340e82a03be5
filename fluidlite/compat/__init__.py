"""Unmodified scripts for Fluid 1.x: `run` starts one, ``site/`` is the package ``paddle`` that it then imports.

The modules beside this one hold what only such scripts need; everything else in ``site/`` is fluidlite's own.
"""
