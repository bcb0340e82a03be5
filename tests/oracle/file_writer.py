"""Run by a Python that has paddlepaddle 1.8.5: ``FOLDER``; programs and files of many kinds, as Fluid writes them."""

import sys
from pathlib import Path

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import layers

FOLDER = sys.argv[1]


def mlp():
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    hidden = layers.fc(layers.dropout(layers.fc(x, 5, act="relu"), 0.5), 1)
    loss = layers.mean(layers.square_error_cost(hidden, y))
    fluid.optimizer.Adam(layers.exponential_decay(0.1, 10, 0.9)).minimize(loss)
    return ["x"], [hidden]


def loop():
    i = layers.fill_constant([1], "int64", 0)
    end = layers.fill_constant([1], "int64", 3)
    x = fluid.data("x", [2, 2])
    total = layers.fc(x, 2)
    layers.while_loop(lambda i, total: i < end, lambda i, total: [i + 1, total * 2.0], [i, total])
    chosen = layers.cond(layers.reduce_sum(total) > 0.0, lambda: total + 1.0, lambda: total - 1.0)
    return ["x"], [chosen]


def sequences():
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = layers.embedding(ids, [20, 8], is_sparse=True)
    recurrent, _ = layers.dynamic_lstm(rows, 8, use_peepholes=False)
    steps = layers.DynamicRNN()
    with steps.block():
        word = steps.step_input(rows)
        memory = steps.memory(shape=[8], value=0.0)
        state = layers.fc([word, memory], 8, act="tanh")
        steps.update_memory(memory, state)
        steps.output(state)
    pooled = [layers.sequence_pool(value, "max") for value in (recurrent, steps())]
    out = layers.fc(pooled, 1)
    fluid.optimizer.Adagrad(0.1).minimize(layers.mean(out))
    return ["ids"], [out]


def cnn():
    image = fluid.data("image", [None, 1, 8, 8])
    maps = layers.batch_norm(layers.conv2d(image, 2, 3, act="relu"))
    out = layers.fc(layers.pool2d(maps, 2, "avg", 2), 3, act="softmax")
    return ["image"], [out]


def write_transpiled(role):
    """The program of a trainer or of a pserver; each of a transpiler of its own, which shares ops with what it gives."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        mlp()
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "127.0.0.1:6174,127.0.0.1:6175", 2, True, startup)
    if role == "trainer":
        program = transpiler.get_trainer_program(wait_port=False)
    else:
        program = transpiler.get_pserver_program("127.0.0.1:6174")
    write(f"{FOLDER}/mlp.{role}.bin", program)


def write(path, program):
    Path(path).write_bytes(program.desc.serialize_to_string())


for build in (mlp, loop, sequences, cnn):
    main, startup = fluid.Program(), fluid.Program()
    scope, place = fluid.Scope(), fluid.CPUPlace()
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        feeds, fetches = build()
        exe = fluid.Executor(place)
        exe.run(startup)
        path = FOLDER + "/" + build.__name__
        for name, program in (("main", main), ("startup", startup), ("test", main.clone(for_test=True))):
            write(f"{path}.{name}.bin", program)
        fluid.save(main, path + "_state")
        fluid.io.save_persistables(exe, path + "_vars", main)
        fluid.io.save_persistables(exe, FOLDER, main, filename=build.__name__ + "_all")
        fluid.io.save_inference_model(path + "_model", feeds, fetches, exe, main)
for role in ("trainer", "pserver"):
    write_transpiled(role)

# what save and load ops hold besides plain arrays
scope = fluid.global_scope()
rows = scope.var("rows").get_selected_rows()
rows.set_height(10)
rows.set_rows([7, 0, 3])
rows.get_tensor().set(np.arange(6, dtype="float32").reshape(3, 2), fluid.CPUPlace())
for dtype in ("float32", "float64", "int8", "int32", "int64"):
    tensor = scope.var(dtype).get_tensor()
    tensor.set(np.arange(3).astype(dtype).reshape(3, 1), fluid.CPUPlace())
    tensor.set_recursive_sequence_lengths([[2, 0], [1, 2]] if dtype == "int64" else [])
for name in ("rows", "float32", "float64", "int8", "int32", "int64"):
    program = fluid.Program()
    kind = fluid.core.VarDesc.VarType.SELECTED_ROWS if name == "rows" else fluid.core.VarDesc.VarType.LOD_TENSOR
    var = program.global_block().create_var(name=name, persistable=True, type=kind)
    program.global_block().append_op(
        type="save", inputs={"X": [var]}, outputs={}, attrs={"file_path": FOLDER + "/record_" + name}
    )
    fluid.Executor(fluid.CPUPlace()).run(program)
print("done")
