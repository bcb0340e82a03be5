"""What cannot be transpiled is refused with the reason, everything at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluidlite.core import edit
from fluidlite.core.ir import Operator, OpRole, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import PassError, TranspileError
from fluidlite.ops import registry
from fluidlite.transpiler import DistributeTranspiler
from fluidlite.transpiler.passes.gradients import keep_on_trainer, send_gradients
from fluidlite.transpiler.pipeline import apply, run_passes
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.planner import make_plan
from tests.transpiler_jobs import JOBS, Job

Change = Callable[[Program, Program], None]
PAIR = Cluster(("ps0:1", "ps1:1"), 2)


def refusals(program: str, change: Change | None = None, cluster: Cluster = PAIR, **options: object) -> str:
    """The refusals of a program after a change, one per line."""
    job = Job(program)
    main, startup = job.main, job.startup
    if change is not None:
        change(main, startup)
    with pytest.raises(TranspileError) as caught:
        make_plan(main, startup, cluster, Options(**options))  # type: ignore[arg-type]
    assert all(reason in str(caught.value) for reason in caught.value.refusals)
    return "\n".join(caught.value.refusals)


def add(main: Program, type: str, inputs: dict[str, list[str]], outputs: dict[str, list[str]], **attrs: object) -> None:
    """Append an op at the place that ``at`` says (default: the end); undeclared outputs are declared as [1]."""
    index = attrs.pop("at", len(main.root.ops))
    assert isinstance(index, int)
    op = Operator(type, inputs, outputs, registry.attrs_for(registry.get(type), attrs), origin="model.py:99")
    for name in op.output_arguments():
        if name not in main.root.vars:
            edit.add_var(main, main.root, Variable(name, shape=(1,)))
    edit.insert_op(main, main.root, index, op)


def find(program: Program, type: str) -> Operator:
    return next(op for op in program.root.ops if op.type == type)


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (Cluster(("ps0:1", "ps1:1", "ps0:1"), 2), "endpoint 'ps0:1' is listed 2 times"),
        (Cluster(("",), 1), "pservers must be endpoints separated by commas"),
        (Cluster(("ps0:1", ""), 1), "pservers must be endpoints separated by commas"),
        (Cluster(("127.0.0.1",), 1), "'127.0.0.1' is no endpoint: give host:port"),
        (Cluster(("ps0:http",), 1), "'ps0:http' is no endpoint"),
        (Cluster(("ps0:1",), 0), "trainers must be a number from 1 on, not 0"),
        (Cluster(("ps0:1",), "a:1,b:1"), "trainers must be a number from 1 on, not 'a:1,b:1'"),  # type: ignore[arg-type]
        (Cluster(("ps0:1",), 2, trainer_id=2), "trainer_id must be from 0 to 1"),
        (Cluster(("ps0:1",), 2, trainer_id=-1), "trainer_id must be from 0 to 1"),
    ],
)
def test_a_cluster_that_makes_no_sense(cluster: Cluster, reason: str) -> None:
    assert reason in refusals("dense", cluster=cluster)


def test_options_that_make_no_sense() -> None:
    text = refusals("dense", min_block_size=0, contradictions=("a and b",), other_mode="mode='nccl2'")
    assert "min_block_size must be at least 1, not 0" in text
    assert "a and b" in text.splitlines()
    assert "mode='nccl2' is not supported" in text


def test_everything_is_said_at_once() -> None:
    text = refusals("dense", cluster=Cluster(("ps0:1", "ps0:1"), 2, trainer_id=5), min_block_size=0)
    assert len(text.splitlines()) == 3


def test_a_program_that_minimize_never_saw() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.remove_ops(main, main.root, [op for op in main.root.ops if op.role & OpRole.OPTIMIZE])

    assert "the program has no optimizer op; call minimize before transpile" in refusals("dense", change)


def test_a_program_that_is_transpiled_already() -> None:
    job = JOBS["dense"]
    with pytest.raises(TranspileError, match="already distributed: it has a send op"):
        make_plan(job.result("trainer"), job.startup, PAIR)


def test_unknown_ops() -> None:
    def change(main: Program, startup: Program) -> None:
        find(main, "mean").type = "meen"

    assert "unknown op 'meen'; did you mean mean" in refusals("dense", change)


def test_a_broken_program() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.remove_var(main, main.root, "h")
        edit.remove_var(startup, startup.root, "b")

    text = refusals("dense", change)
    assert "the main program: the program breaks" in text
    assert "output Out='h' is not declared" in text
    assert "the startup program: the program breaks" in text


def test_an_update_inside_a_block() -> None:
    def change(main: Program, startup: Program) -> None:
        block = edit.add_block(main, 0)
        edit.append_op(main, block, edit.clone_op(find(main, "adam")))

    assert "adam updates a parameter inside block 1" in refusals("dense", change)


def test_a_parameter_that_is_updated_twice() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.append_op(main, main.root, edit.clone_op(find(main, "momentum")))

    assert "parameter 'b' is updated by 2 ops" in refusals("dense", change)


def test_an_update_that_is_not_in_place() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable("new_b", shape=(8,)))
        find(main, "momentum").outputs["ParamOut"] = ["new_b"]

    assert "momentum writes the new 'b' to 'new_b'" in refusals("dense", change)


def test_an_accumulator_of_two_parameters() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.rename_arguments(main, find(main, "momentum"), {"b_velocity_0": "w_moment1_0"})

    assert "accumulator 'w_moment1_0' is shared by the updates of 'b', 'w'" in refusals("dense", change)


def test_a_learning_rate_that_depends_on_data() -> None:
    def change(main: Program, startup: Program) -> None:
        add(main, "mean", {"X": ["x"]}, {"Out": ["rate"]}, at=0)
        find(main, "adam").inputs["LearningRate"] = ["rate"]

    assert "adam of 'w' reads 'rate', which depends on 'x' (fed data)" in refusals("dense", change)


def test_a_learning_rate_that_depends_on_a_parameter() -> None:
    def change(main: Program, startup: Program) -> None:
        add(main, "mean", {"X": ["b"]}, {"Out": ["rate"]}, at=0)
        find(main, "adam").inputs["LearningRate"] = ["rate"]

    assert "which depends on 'b' (a trained parameter)" in refusals("dense", change)


def test_two_gradients_for_one_parameter() -> None:
    def change(main: Program, startup: Program) -> None:
        index = edit.position(main.root, find(main, "clip"))
        add(main, "sum", {"X": ["clipped", "emb@GRAD"]}, {"Out": ["bounded"]}, at=index, op_role=2)
        find(main, "clip").inputs["X"] = ["bounded"]

    assert "needs 2 variables of the trainer (clipped, emb@GRAD); exactly one" in refusals("table_adam", change)


def test_no_gradient_for_a_parameter() -> None:
    def change(main: Program, startup: Program) -> None:
        find(main, "clip_by_norm").inputs["X"] = ["b"]

    assert "the update of 'b' by momentum needs 0 variables of the trainer (none)" in refusals("dense", change)


def test_an_optimize_op_that_belongs_to_nobody() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable("average", shape=(8,), persistable=True))
        add(main, "scale", {"X": ["b"]}, {"Out": ["average"]}, op_role=2)

    assert "scale (model.py:99) has the role Optimize and writes 'average'" in refusals("dense", change)


def test_an_optimize_op_that_belongs_to_two_parameters() -> None:
    def change(main: Program, startup: Program) -> None:
        add(
            main, "elementwise_add", {"X": ["w_beta1_pow_acc_0"], "Y": ["b"]}, {"Out": ["w_beta1_pow_acc_0"]}, op_role=2
        )

    assert "changes the state of several parameters (b, w)" in refusals("dense", change)


def test_a_trainer_op_that_reads_an_accumulator() -> None:
    def change(main: Program, startup: Program) -> None:
        add(main, "mean", {"X": ["b_velocity_0"]}, {"Out": ["speed"]})

    assert "mean (model.py:99) reads 'b_velocity_0', which only the server" in refusals("dense", change)


def test_a_trainer_op_that_changes_a_parameter() -> None:
    def change(main: Program, startup: Program) -> None:
        add(main, "clip", {"X": ["b"]}, {"Out": ["b"]}, min=-1.0, max=1.0)

    assert "clip (model.py:99) changes parameter 'b' outside its update" in refusals("dense", change)


def test_a_trainer_op_between_two_updates() -> None:
    def change(main: Program, startup: Program) -> None:
        index = edit.position(main.root, find(main, "adam"))
        add(main, "mean", {"X": ["b"]}, {"Out": ["new_mean"]}, at=index)

    assert "mean (model.py:99) reads 'b' after its update but before the end of the step" in refusals("dense", change)


def test_a_parameter_that_nothing_initialises() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.remove_ops(startup, startup.root, [op for op in startup.root.ops if op.output("Out") != "w"])

    text = refusals("dense", change)
    for name in ("b", "b_velocity_0", "w_moment1_0", "learning_rate_0"):
        assert f"no op of the startup program initialises {name!r}" in text


@pytest.mark.parametrize("name", ["w.block1", "w@GRAD.block0", "w_moment1_0.block0"])
def test_a_name_that_a_slice_would_have(name: str) -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable(name, shape=(1,)))

    text = refusals("dense", change, min_block_size=8)
    assert f"the program has a variable {name!r}, the name of slice" in text


@pytest.mark.parametrize("name", ["emb.ids1.shard0", "emb.rows0", "emb@GRAD.merged", "emb@GRAD.shard1"])
def test_a_name_that_a_lookup_would_have(name: str) -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable(name, shape=(1,)))

    assert f"the program has a variable {name!r}" in refusals("table", change)


def test_a_table_that_is_not_only_looked_up() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable("table_norm", shape=(1,)))
        add(main, "mean", {"X": ["emb"]}, {"Out": ["table_norm"]}, at=2)

    text = refusals("table", change)
    assert "distributed table 'emb' is used by mean (model.py:99); it can only be looked up" in text


def test_a_table_that_is_looked_up_inside_a_block() -> None:
    def change(main: Program, startup: Program) -> None:
        block = edit.add_block(main, 0)
        edit.append_op(main, block, edit.clone_op(find(main, "lookup_table")))

    text = refusals("table", change)
    assert "distributed table 'emb' is used by lookup_table in block 1; it can only be looked up" in text


def test_a_table_that_is_decayed_whole() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(main, main.root, Variable("decay", shape=(1000, 4)))
        index = edit.position(main.root, find(main, "adam"))
        add(main, "sum", {"X": ["bounded", "decay"]}, {"Out": ["bounded"]}, at=index, op_role=2)
        add(main, "scale", {"X": ["emb"]}, {"Out": ["decay"]}, at=index, op_role=2)

    assert "distributed table 'emb' is used by scale (model.py:99)" in refusals("table_adam", change)


def test_an_optimizer_of_a_table_that_needs_its_norm() -> None:
    def change(main: Program, startup: Program) -> None:
        sgd = find(main, "sgd")
        sgd.type = "dpsgd"

    assert "dpsgd needs the norm of all of 'emb'" in refusals("table", change)


def test_a_table_with_a_dense_gradient() -> None:
    def change(main: Program, startup: Program) -> None:
        main.root.vars["emb@GRAD"].kind = VarKind.LOD_TENSOR

    assert "the gradient 'emb@GRAD' of distributed table 'emb' is dense" in refusals("table", change)


def test_a_table_that_does_not_start_row_by_row() -> None:
    def change(main: Program, startup: Program) -> None:
        edit.add_var(startup, startup.root, Variable("whole", shape=(1000, 4), persistable=True))
        find(startup, "uniform_random").outputs["Out"] = ["whole"]
        add(startup, "scale", {"X": ["whole"]}, {"Out": ["emb"]})

    assert "distributed table 'emb' is initialised by scale (model.py:99)" in refusals("table", change)


@pytest.mark.parametrize("shape", [(1000,), (1000, 4, 2), (1000, 0)])
def test_a_table_of_another_shape(shape: tuple[int, ...]) -> None:
    def change(main: Program, startup: Program) -> None:
        main.root.vars["emb"].shape = shape

    assert "distributed table 'emb' must have shape [height, width]" in refusals("table", change)


def test_a_parameter_without_a_fixed_shape() -> None:
    def change(main: Program, startup: Program) -> None:
        main.root.vars["b"].shape = (-1,)

    assert "momentum updates 'b', which is no variable of block 0 with a fixed shape" in refusals("dense", change)


def test_a_failing_pass_is_named_and_its_program_shown() -> None:
    job = JOBS["dense"]

    def break_it(program: Program, plan: Plan) -> None:
        edit.append_op(program, program.root, Operator("relu", {"X": ["nowhere"]}, {"Out": ["h"]}))

    untouched = job.main
    for run in (
        lambda: apply(break_it, untouched, job.plan),
        lambda: run_passes(untouched, job.plan, (keep_on_trainer, break_it, send_gradients)),
    ):
        with pytest.raises(PassError, match="pass break_it failed") as caught:
            run()
        assert "'nowhere' is not declared" in str(caught.value)
        assert "param w: [6, 4]" in str(caught.value)
        assert "send(" not in str(caught.value)
    assert untouched == job.main


def test_a_refused_program_is_left_alone() -> None:
    job = Job("dense")
    main, startup = job.main, job.startup
    before = edit.clone(main)
    with pytest.raises(TranspileError):
        make_plan(main, startup, Cluster(("a:1", "a:1"), 1))
    assert main == before


def test_a_list_of_endpoints() -> None:
    with pytest.raises(TranspileError, match="a string, endpoints separated by commas, not \\['ps0:1'\\]"):
        DistributeTranspiler().transpile(0, pservers=["ps0:1"])  # type: ignore[arg-type]
