"""The front end's ground: whose line an op is of."""

from __future__ import annotations

from pathlib import Path

import pytest

import fluidlite
import fluidlite as fluid
from fluidlite.errors import ProgramError

PACKAGE = Path(fluidlite.__file__).parent
CALL = "from fluidlite.framework import user_line\nline = user_line()\n"


def line_seen_from(file: Path) -> str:
    names: dict[str, str] = {}
    exec(compile(CALL, str(file), "exec"), names)
    return names["line"]


@pytest.mark.parametrize("file", ["train.py", "fluidlite_models.py", "fluidlite/demo/wide_deep.py"])
def test_a_file_outside_the_package_is_the_users_and_so_is_the_demo(file: str) -> None:
    path = PACKAGE.parent / file
    assert line_seen_from(path) == f"{path}:2"


def test_a_file_of_the_package_is_not() -> None:
    assert line_seen_from(PACKAGE / "layers" / "nn.py").startswith(f"{__file__}:")


def test_names_change_in_a_block_and_in_its_ops() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.data("x", [2])
        fluid.layers.relu(fluid.layers.scale(x, 2.0))
    block = program.global_block()
    scaled = block.ops[0].output("Out")[0]
    places = list(block.vars)
    assert block._rename_var(scaled, "y").name == "y"
    assert list(block.vars) == ["y" if name == scaled else name for name in places]
    assert (block.ops[0].input_arg_names, block.ops[0].output_arg_names) == (["x"], ["y"])
    assert block.ops[1].input("X") == ["y"]
    block.ops[1]._rename_input("y", "x")
    block.ops[0]._rename_output("x", "z")
    assert (block.ops[1].input("X"), block.ops[0].input("X"), block.ops[0].output("Out")) == (["x"], ["x"], ["y"])
    block.ops[0]._rename_output("y", "x")
    assert block.ops[0].output("Out") == ["x"]
    block._remove_var("y")
    assert not block.has_var("y")
    for name, new in (("gone", "a"), ("x", block.ops[1].output("Out")[0]), ("x", "")):
        with pytest.raises(ProgramError, match="cannot rename"):
            block._rename_var(name, new)


def test_a_program_is_pruned_behind_what_is_fed() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.data("x", [2])
        middle = fluid.layers.scale(x, 2.0)
        out = fluid.layers.relu(middle)
    pruned = program._prune_with_input([middle.name], out)
    assert [op.type for op in pruned.global_block().ops] == ["relu"]
    assert pruned.global_block().has_var(middle.name)
    assert not pruned.global_block().has_var("x")
    assert [op.type for op in program._prune([out]).global_block().ops] == ["scale", "relu"]
