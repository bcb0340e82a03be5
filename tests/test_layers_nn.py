"""fc, embedding, one_hot, dropout and the other layers with parameters: ops, names, shapes and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fluidlite.input as fluid_input
from fluidlite import framework, layers, nets, unique_name
from fluidlite.core import ir
from fluidlite.dtypes import VarKind
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Program
from fluidlite.initializer import Bilinear, Constant, NumpyArrayInitializer, Xavier
from fluidlite.layer_helper import LayerHelper
from fluidlite.param_attr import ParamAttr
from tests.frontend import fresh_programs, op_lines, run


def test_fc_of_two_inputs() -> None:
    with fresh_programs() as (main, startup):
        a = layers.data("a", [4])
        b = layers.data("b", [2, 3])
        out = layers.fc([a, b], 5, act="relu")
        assert out.name == "fc_0.tmp_4"
        assert out.shape == (-1, 5)
        assert op_lines(main) == [
            "mul(X=[a], Y=[fc_0.w_0]) -> (Out=[fc_0.tmp_0])",
            "mul(X=[b], Y=[fc_0.w_1]) -> (Out=[fc_0.tmp_1])",
            "sum(X=[fc_0.tmp_0 fc_0.tmp_1]) -> (Out=[fc_0.tmp_2])",
            "elementwise_add(X=[fc_0.tmp_2], Y=[fc_0.b_0]) -> (Out=[fc_0.tmp_3]) {axis=1}",
            "relu(X=[fc_0.tmp_3]) -> (Out=[fc_0.tmp_4])",
        ]
        assert [op.output("Out") for op in startup.desc.root.ops] == ["fc_0.b_0", "fc_0.w_1", "fc_0.w_0"]
        assert [param.name for param in main.all_parameters()] == ["fc_0.w_0", "fc_0.w_1", "fc_0.b_0"]


def test_fc_keeps_leading_dimensions_and_lod() -> None:
    with fresh_programs():
        x = layers.data("x", [3, 4])
        assert layers.fc(x, 5, num_flatten_dims=2).shape == (-1, 3, 5)
        assert layers.fc(x, 5, num_flatten_dims=-1, name="last").name == "last.tmp_1"
        words = layers.data("words", [4], lod_level=1)
        assert layers.fc(words, 2, act="softmax").lod_level == 1


def test_fc_computes_what_numpy_does() -> None:
    weight = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with fresh_programs():
        out = layers.fc(
            layers.data("x", [4]), 2, param_attr=NumpyArrayInitializer(weight), bias_attr=Constant(0.5), act="tanh"
        )
        (value,) = run([out], {"x": x})
    np.testing.assert_allclose(value.array, np.tanh(x @ weight + 0.5), rtol=1e-6)


def test_param_attr_shorthands() -> None:
    with fresh_programs() as (main, startup):
        x = layers.data("x", [4])
        layers.fc(x, 2, param_attr="w", bias_attr=False)
        layers.fc(x, 2, param_attr=Constant(1.0), bias_attr=ParamAttr(trainable=False, learning_rate=0.5))
        layers.fc([x, x], 3, param_attr=[ParamAttr(name="left"), ParamAttr(name="right")], bias_attr=True)
        names = [param.name for param in main.all_parameters()]
        assert names == ["w", "fc_1.w_0", "fc_1.b_0", "left", "right", "fc_2.b_0"]
        bias = main.global_block().var("fc_1.b_0").desc
        assert isinstance(bias, ir.Parameter)
        assert (bias.trainable, bias.learning_rate) == (False, 0.5)
        values = [line for line in op_lines(startup) if "fc_1.w_0" in line]
        assert values == ["fill_constant() -> (Out=[fc_1.w_0]) {shape=[4, 2], value=1.0}"]


def test_a_callable_attr_is_a_regularizer() -> None:
    def decay(*_: object) -> None: ...

    with fresh_programs() as (main, _):
        layers.fc(layers.data("x", [4]), 2, param_attr=decay)
        param = main.all_parameters()[0].desc
        assert isinstance(param, ir.Parameter)
        assert param.regularizer is decay


def test_one_attr_for_several_inputs_names_one_parameter() -> None:
    with fresh_programs() as (main, startup):
        x = layers.data("x", [4])
        layers.fc([x, x], 2, param_attr="w", bias_attr=False)
        assert [param.name for param in main.all_parameters()] == ["w"]
        assert len(startup.desc.root.ops) == 1


def test_prefix_of_unique_name_guard() -> None:
    with fresh_programs(), unique_name.guard("P_"):
        assert layers.fc(layers.data("x", [4]), 2).name == "P_P_fc_0.tmp_1"


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda x, i: layers.fc(i, 2), DtypeError, ["fc", "'i'", "int64", "test_layers_nn.py"]),
        (lambda x, i: layers.fc([x, i], 2), DtypeError, ["'x' is float32", "'i' is int64"]),
        (lambda x, i: layers.fc("x", 2), ProgramError, ["fc", "'input'", "str"]),
        (lambda x, i: layers.fc([], 2), ProgramError, ["fc", "empty"]),
        (lambda x, i: layers.fc(x, 2, num_flatten_dims=3), ShapeError, ["num_flatten_dims 3", "'x'"]),
        (lambda x, i: layers.fc(x, 2, param_attr=False), ProgramError, ["param_attr=False"]),
        (lambda x, i: layers.fc([x, x], 2, param_attr=["a"]), ProgramError, ["1 param_attr", "2 inputs"]),
        (lambda x, i: layers.fc(x, 2, param_attr=3), ProgramError, ["3 is no ParamAttr"]),
        (lambda x, i: layers.fc(x, 2, act=3), ProgramError, ["fc", "act"]),
        (lambda x, i: layers.fc(layers.data("u", [None, None]), 2), ShapeError, ["'u'", "must be known"]),
        (lambda x, i: layers.fc(x, 0), ShapeError, ["[12, 0]"]),
        (lambda x, i: layers.dropout(x, 1.5), ProgramError, ["'x'", "1.5"]),
        (lambda x, i: layers.dropout(x, 0.5, dropout_implementation="no"), ProgramError, ["'x'", "'no'"]),
        (lambda x, i: layers.prelu(x, "some"), ProgramError, ["'x'", "'some'"]),
        (lambda x, i: layers.embedding(x, [9, 2]), ShapeError, ["'x'", "fluid.embedding"]),
        (lambda x, i: fluid_input.embedding(x, [9, 2]), DtypeError, ["embedding", "'x'", "int64"]),
        (lambda x, i: layers.embedding(i, [9]), ShapeError, ["[9]", "'i'"]),
        (lambda x, i: layers.embedding(i, [0, 2]), ShapeError, ["[0, 2]"]),
        (lambda x, i: layers.embedding(i, [9, 2], padding_idx=9), ProgramError, ["padding_idx 9", "9 rows"]),
        (lambda x, i: layers.embedding(i, [9, 2], padding_idx=-10), ProgramError, ["padding_idx -10"]),
        (lambda x, i: layers.one_hot(x, 3), DtypeError, ["one_hot", "'x'"]),
        (lambda x, i: layers.hash(x, 3), DtypeError, ["hash", "'x'"]),
        (lambda x, i: ParamAttr(name=""), ProgramError, ["name"]),
        (lambda x, i: ParamAttr(initializer=1.0), ProgramError, ["initializer"]),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(build: Callable[..., object], error: type[Exception], words: list[str]) -> None:
    with fresh_programs():
        x = layers.data("x", [3, 4])
        ids = layers.data("i", [1], dtype="int64")
        with pytest.raises(error) as caught:
            build(x, ids)
    for word in words:
        assert word in str(caught.value)


def test_a_parameter_has_one_shape() -> None:
    with fresh_programs():
        x = layers.data("x", [4])
        layers.fc(x, 2, param_attr="w")
        with pytest.raises(ProgramError, match=r"'w' float32 \[4, 3\] is already declared as float32 \[4, 2\]"):
            layers.fc(x, 3, param_attr="w")


# embeddings


def test_embedding_ops_and_padding() -> None:
    with fresh_programs() as (main, _):
        ids = layers.data("ids", [1], dtype="int64", lod_level=1)
        many = fluid_input.data("many", [None, 3], "int64")
        assert layers.embedding(ids, [10, 2], padding_idx=3).lod_level == 1
        assert layers.embedding(ids, [10, 2], padding_idx=-2, is_sparse=True).shape == (-1, 2)
        assert fluid_input.embedding(many, [10, 2], padding_idx=0, is_sparse=True).shape == (-1, 3, 2)
        assert op_lines(main) == [
            "lookup_table(Ids=[ids], W=[embedding_0.w_0]) -> (Out=[embedding_0.tmp_0]) {padding_idx=3}",
            "lookup_table(Ids=[ids], W=[embedding_1.w_0]) -> (Out=[embedding_1.tmp_0]) "
            "{is_sparse=True, padding_idx=8, remote_prefetch=True}",
            "lookup_table_v2(Ids=[many], W=[embedding_2.w_0]) -> (Out=[embedding_2.tmp_0]) "
            "{is_sparse=True, padding_idx=0, remote_prefetch=True}",
        ]


def test_embeddings_share_a_parameter_by_name() -> None:
    with fresh_programs() as (main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        layers.embedding(ids, [10, 2], param_attr="emb")
        layers.embedding(ids, [10, 2], param_attr=ParamAttr(name="emb", initializer=Constant(1.0)))
        assert [param.name for param in main.all_parameters()] == ["emb"]
        assert [op.type for op in startup.desc.root.ops] == ["uniform_random"]


def test_u04_a_distributed_table_is_among_the_parameters() -> None:
    with fresh_programs() as (main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        out = layers.embedding(ids, [10**12, 4], is_distributed=True, param_attr="table")
        (param,) = main.all_parameters()
        assert param.is_distributed
        assert param.persistable
        assert param.shape == (10**12, 4)
        assert out.shape == (-1, 4)
        (init,) = startup.desc.root.ops
        assert init.attr("auto_grown_table") is True
        (lookup,) = main.desc.root.ops
        assert (lookup.attr("is_distributed"), lookup.attr("is_sparse")) == (True, True)
        assert lookup.attr("remote_prefetch") is False


def test_a_distributed_table_runs_without_its_height() -> None:
    with fresh_programs():
        ids = layers.data("ids", [1], dtype="int64")
        out = layers.embedding(ids, [10**12, 4], is_distributed=True, param_attr=Constant(0.25))
        (value,) = run([out], {"ids": np.array([[7], [-1], [2**62 + 1], [7]], np.int64)})
    np.testing.assert_array_equal(value.array, np.full((4, 4), 0.25, np.float32))


def test_padding_of_a_table_may_exceed_its_height() -> None:
    with fresh_programs() as (main, _):
        ids = layers.data("ids", [1], dtype="int64")
        layers.embedding(ids, [10, 2], is_distributed=True, padding_idx=2**40)
        assert main.desc.root.ops[0].attr("padding_idx") == 2**40


@pytest.mark.parametrize("first", [True, False])
def test_one_name_is_not_both_table_and_parameter(first: bool) -> None:
    with fresh_programs():
        ids = layers.data("ids", [1], dtype="int64")
        layers.embedding(ids, [10, 2], is_distributed=first, param_attr="emb")
        with pytest.raises(ProgramError, match=f"'emb' is declared with is_distributed={first}"):
            layers.embedding(ids, [10, 2], is_distributed=not first, param_attr="emb")


def test_a_table_refuses_initializers_of_whole_parameters() -> None:
    with fresh_programs():
        ids = layers.data("ids", [1], dtype="int64")
        with pytest.raises(ProgramError, match="Bilinear cannot initialise the distributed table 'emb'"):
            layers.embedding(
                ids, [10, 2], is_distributed=True, param_attr=ParamAttr(name="emb", initializer=Bilinear())
            )


def test_fused_embedding_seq_pool() -> None:
    with fresh_programs() as (main, _):
        ids = layers.data("ids", [1], dtype="int64", lod_level=1)
        layers.fused_embedding_seq_pool(ids, [10, 3], is_sparse=True, param_attr="emb")
        assert op_lines(main) == [
            "fused_embedding_seq_pool(Ids=[ids], W=[emb]) -> (Out=[fused_embedding_seq_pool_0.tmp_0]) {is_sparse=True}"
        ]
        with pytest.raises(ProgramError, match="'mean'"):
            layers.fused_embedding_seq_pool(ids, [10, 3], combiner="mean")


# the others


def test_dropout_takes_the_seed_of_the_program() -> None:
    with fresh_programs() as (main, _):
        x = layers.data("x", [4])
        layers.dropout(x, 0.5)
        main.random_seed = 7
        layers.dropout(x, 0.5)
        layers.dropout(x, 0.5, seed=3, name="mine")
        assert op_lines(main) == [
            "dropout(X=[x]) -> (Mask=[dropout_0.tmp_1], Out=[dropout_0.tmp_0])",
            "dropout(X=[x]) -> (Mask=[dropout_1.tmp_1], Out=[dropout_1.tmp_0]) {fix_seed=True, seed=7}",
            "dropout(X=[x]) -> (Mask=[mine.tmp_1], Out=[mine.tmp_0]) {fix_seed=True, seed=3}",
        ]
        assert main.global_block().var("mine.tmp_1").stop_gradient


def test_one_hot() -> None:
    with fresh_programs():
        ids = layers.data("ids", [1], dtype="int64")
        many = fluid_input.data("many", [None, 2], "int64")
        old, new = layers.one_hot(ids, 3), fluid_input.one_hot(many, 3, allow_out_of_range=True)
        assert (old.shape, old.stop_gradient) == ((-1, 3), True)
        assert new.shape == (-1, 2, 3)
        values = run([old, new], {"ids": np.array([[2], [0]]), "many": np.array([[1, 5]])})
    np.testing.assert_array_equal(values[0].array, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(values[1].array, [[[0, 1, 0], [0, 0, 0]]])


def test_prelu_parameters() -> None:
    with fresh_programs() as (main, _):
        x = layers.data("x", [3, 2, 2])
        layers.prelu(x, "all")
        layers.prelu(x, "channel")
        layers.prelu(x, "element")
        assert [param.shape for param in main.all_parameters()] == [(1,), (1, 3, 1, 1), (1, 3, 2, 2)]


def test_continuous_value_model_names_its_output_generated() -> None:
    with fresh_programs():
        x, cvm = layers.data("x", [5]), layers.data("cvm", [2])
        assert layers.continuous_value_model(x, cvm).name == "_generated_var_0"


def test_parameters_go_to_the_given_programs() -> None:
    main, startup = Program(), Program()
    with fresh_programs() as (outer, _), framework.program_guard(main, startup):
        layers.fc(layers.data("x", [4]), 2)
    assert len(main.all_parameters()) == 2
    assert not outer.all_parameters()


def test_a_second_main_program_reuses_the_startup_program() -> None:
    with fresh_programs() as (_, startup):
        for program in (Program(), Program()):
            with framework.program_guard(program, startup), unique_name.guard():
                layers.fc(layers.data("x", [4]), 2, param_attr=Xavier())
        assert len(startup.desc.root.ops) == 2


def test_users_write_layers_with_layer_helper() -> None:
    def halves(
        input: object, size: int, param_attr: object = None, bias_attr: object = None, act: object = None
    ) -> object:
        helper = LayerHelper("halves", **locals())
        var = helper.input()
        weight = helper.create_parameter(attr=helper.param_attr, shape=[var.shape[1], size], dtype=helper.input_dtype())
        out = helper.create_variable_for_type_inference(dtype=var.dtype)
        helper.append_op(type="mul", inputs={"X": var, "Y": weight}, outputs={"Out": out}, attrs={"x_num_col_dims": 1})
        return helper.append_activation(helper.append_bias_op(out))

    with fresh_programs() as (main, _):
        x = layers.data("x", [4])
        halves(x, 2, act={"type": "leaky_relu", "alpha": 0.5})
        assert op_lines(main) == [
            "mul(X=[x], Y=[halves_0.w_0]) -> (Out=[halves_0.tmp_0])",
            "elementwise_add(X=[halves_0.tmp_0], Y=[halves_0.b_0]) -> (Out=[halves_0.tmp_1]) {axis=1}",
            "leaky_relu(X=[halves_0.tmp_1]) -> (Out=[halves_0.tmp_2]) {alpha=0.5}",
        ]
        with pytest.raises(ProgramError, match="'input' takes one variable, not 2"):
            halves([x, x], 2)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda x: nets.glu(layers.data("odd", [3])), ["split", "3"]),
        (lambda x: nets.scaled_dot_product_attention(x, x, layers.data("flat", [4])), ["3 dimensions", "'flat'"]),
        (lambda x: nets.scaled_dot_product_attention(x, layers.data("w", [3, 5]), x), ["do not fit", "'w'"]),
        (lambda x: nets.scaled_dot_product_attention(x, x, x, num_heads=3), ["3 heads", "'x'"]),
    ],
)
def test_nets_name_what_does_not_fit(build: Callable[..., object], words: list[str]) -> None:
    with fresh_programs():
        x = layers.data("x", [3, 4])
        with pytest.raises(ShapeError) as caught:
            build(x)
    for word in words:
        assert word in str(caught.value)


def test_conv_group_takes_one_option_per_convolution() -> None:
    with fresh_programs():
        image = layers.data("image", [3, 8, 8])
        with pytest.raises(ProgramError, match="1 values of conv_filter_size for 2 convolutions"):
            nets.img_conv_group(image, [4, 4], 2, conv_filter_size=[3])


def test_layers_of_selected_rows() -> None:
    with fresh_programs() as (main, _):
        rows = main.global_block().create_var("rows", shape=[9, 2], type=VarKind.SELECTED_ROWS)
        merged = layers.merge_selected_rows(rows)
        assert merged.type is VarKind.SELECTED_ROWS
        assert layers.get_tensor_from_selected_rows(merged).type is VarKind.LOD_TENSOR
