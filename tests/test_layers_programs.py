"""Every layer against the ops that real Fluid 1.8.5 appends for the same call (`layer_programs.txt`)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fluidlite
from fluidlite import layers
from fluidlite.framework import Program
from fluidlite.ops import registry
from tests.frontend import fresh_programs, op_lines

#: the variables that the calls use
INPUTS = """
x = fluid.data('x', [None, 3, 4])
y = fluid.data('y', [None, 3, 4])
f = fluid.data('f', [None, 4])
g = fluid.data('g', [None, 4])
one = fluid.data('one', [None, 1])
c = fluid.data('c', [5, 4])
i = fluid.data('i', [None, 3], 'int64')
j = fluid.data('j', [None, 1], 'int64')
k = fluid.data('k', [None], 'int64')
ok = fluid.data('ok', [None, 1], 'bool')
q = fluid.data('q', [None, 4], lod_level=1)
qi = fluid.data('qi', [None, 1], 'int64', lod_level=1)
img = fluid.data('img', [None, 3, 8, 8])
two = L.fill_constant([1], 'int32', 2)
"""
_CASES = (Path(__file__).parent / "layer_programs.txt").read_text(encoding="utf-8").split("\n== ")[1:]
CALLS = {call: ops.rstrip() for call, ops in (case.split("\n", 1) for case in _CASES)}


@pytest.mark.parametrize("call", CALLS)
def test_ops_are_those_of_fluid(call: str) -> None:
    expected = CALLS[call]
    absent = [name for name in re.findall(r"^  (\w+)\(", expected, re.MULTILINE) if registry.find(name) is None]
    if absent:
        pytest.skip(f"not available: op {', '.join(sorted(set(absent)))}")
    with fresh_programs() as (main, startup):
        names = {"fluid": fluidlite, "L": layers, "np": np}
        exec(INPUTS, names)
        first = main.desc.root.ops[0]
        exec(call, names)
        main.desc.root.ops.remove(first)
        assert _listing(main, startup) == expected


def _listing(main: Program, startup: Program) -> str:
    parts = []
    for block in main.desc.blocks:
        parts += [f"block {block.idx}"] if block.idx else []
        parts += [f"  {line}" for line in op_lines(main, block.idx)]
    initial = op_lines(startup)
    parts += ["startup", *(f"  {line}" for line in initial)] if initial else []
    return "\n".join(parts)
