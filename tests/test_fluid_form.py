"""What is written beside an op's own attributes, so that Fluid can train a program (`fluidlite.ops.fluid_form`).

That Fluid does, tests/oracle/test_training_programs.py shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.core import edit, serde, text
from fluidlite.core.ir import Attr, AttrType, Operator, Program
from fluidlite.ops import fluid_form, registry
from tests.frontend import fresh_programs
from tests.oracle.program_jobs import JOBS
from tests.shared_data import needs_shared, shared

#: on every op, for which Fluid has a default of its own; the role is always written
COMMON = {"op_role", "op_role_var", "op_namescope", "op_callstack", "op_device"}


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def gradients_of_fluid() -> Iterator[dict[str, Any]]:
    """Those made by the ops of Fluid, where that did not crash."""
    for made in json.loads(shared("spec", "fluid185_grads.json").read_text(encoding="utf-8")).values():
        yield from (op for op in made if isinstance(op, dict))


@needs_shared
def test_gradient_ops_have_all_attributes_of_fluid() -> None:
    count = 0
    for theirs in gradients_of_fluid():
        if (op_def := registry.find(theirs["type"])) is None or not theirs["type"].endswith(("_grad", "_grad2")):
            continue
        given = {name: Attr(spec.type, None) for name, spec in op_def.attrs.items() if spec.required}
        written = fluid_form.complete(Operator(theirs["type"], attrs=given))
        assert set(theirs["attrs"]) - COMMON <= written.attrs.keys(), theirs["type"]
        count += 1
    assert count > 150


def test_the_table_names_gradient_ops() -> None:
    switches = fluid_form._OF_TYPE
    assert not [type for type in switches if registry.find(type) is None]
    for type, attrs in switches.items():
        assert not attrs.keys() & registry.get(type).attrs.keys(), type


@pytest.mark.parametrize("name", ["ctr", "images", "no_reads", "static_rnn"])
def test_what_is_written(name: str) -> None:
    JOBS[name][0]()
    main = fluid.default_main_program()
    before = text.show(main.desc)
    data = main.serialize_to_string()
    assert text.show(main.desc) == before
    again = serde.from_bytes(data)
    for mine, read in zip((op for _, op in main.desc.all_ops()), (op for _, op in again.all_ops()), strict=True):
        assert mine.attrs.items() <= read.attrs.items()
        assert {key: found for key, found in read.inputs.items() if found or key in mine.inputs} == mine.inputs
        if not mine.type.endswith("_grad"):
            assert mine.attrs == read.attrs
    assert serde.to_bytes(again, fluid_form.complete) == serde.to_bytes(again) == data


def test_defaults_and_switches_are_written_and_given_values_stay() -> None:
    op = Operator("conv2d_grad", attrs={"groups": Attr(AttrType.INT, 2), "use_cudnn": Attr(AttrType.BOOLEAN, True)})
    attrs = fluid_form.complete(op).attrs
    assert len(op.attrs) == 2
    found = {name: attrs[name].value for name in ("groups", "use_cudnn", "use_mkldnn", "use_quantizer", "data_format")}
    assert found == {"groups": 2, "use_cudnn": True, "use_mkldnn": False, "use_quantizer": False, "data_format": "NCHW"}


def test_inputs_without_arguments_are_named_where_fluid_asks() -> None:
    op = Operator("conditional_block", inputs={"Cond": ["c"]})
    assert fluid_form.complete(op).inputs == {"Cond": ["c"], "Input": []}
    assert fluid_form.complete(Operator("conditional_block", inputs={"Input": ["x"]})).inputs == {"Input": ["x"]}
    assert fluid_form.complete(plain := Operator("relu")) is plain


def test_what_was_read_is_written_as_it_was() -> None:
    """A gradient op without the attributes, as Fluid 1.0 wrote it, gets none; one that is added beside it does."""
    program = Program()
    edit.append_op(program, program.root, Operator("relu_grad"))
    old = serde.to_bytes(program)
    read = serde.from_bytes(old)
    assert read.serialize_to_string() == old
    edit.append_op(read, read.root, Operator("relu_grad"))
    first, second = serde.from_bytes(read.serialize_to_string()).root.ops
    assert not first.attrs
    assert second.attrs["use_mkldnn"] == Attr(AttrType.BOOLEAN, value=False)


def test_states_and_models_to_train_on_are_written_so(tmp_path: Path) -> None:
    fetch = JOBS["classifier"][0]()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fluid.save(fluid.default_main_program(), tmp_path / "state")
    fluid.io.save_inference_model(tmp_path, ["x", "class"], fetch[:1], exe, export_for_deployment=False)
    for name in ("state.pdmodel", "__model__.main_program"):
        program = serde.from_bytes((tmp_path / name).read_bytes())
        (gradient,) = [op for op in program.root.ops if op.type == "tanh_grad"]
        assert gradient.attr("use_mkldnn") is False
