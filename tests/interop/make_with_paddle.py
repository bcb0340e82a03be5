"""Run by a Python that has paddlepaddle 2 or 3: writes models and states of it into a folder, and what the models compute.

    FLAGS_enable_pir_api=0 python make_with_paddle.py FOLDER

tests/files_of_paddle/ was made with this, by paddlepaddle 2.6.2 and 3.3.1.
"""

import os
import sys
from pathlib import Path

os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112 (its name)
import numpy as np
import paddle

try:
    from paddle.base.proto import framework_pb2
except ImportError:
    from paddle.fluid.proto import framework_pb2

RNG = np.random.RandomState(0)


def ctr():
    ids = paddle.static.data("ids", [None, 3], "int64")
    dense = paddle.static.data("dense", [None, 2])
    rows = paddle.static.nn.embedding(ids, [20, 4], padding_idx=3, param_attr=paddle.ParamAttr(name="emb"))
    both = paddle.concat([paddle.reshape(rows, [-1, 12]), dense], axis=1)
    hidden = paddle.static.nn.fc(both, 6, activation="relu")
    score = paddle.static.nn.fc(hidden, 1, activation="sigmoid")
    feed = {"ids": RNG.randint(0, 20, (5, 3)).astype("int64"), "dense": RNG.randn(5, 2).astype("float32")}
    return [ids, dense], [score, paddle.stack([hidden, hidden], axis=1), paddle.nn.functional.one_hot(ids, 20)], feed


def cnn():
    image = paddle.static.data("image", [None, 1, 6, 6])
    maps = paddle.static.nn.conv2d(image, 2, 3, act="relu")
    maps = paddle.static.nn.batch_norm(paddle.nn.functional.max_pool2d(maps, 2))
    flat = paddle.nn.functional.dropout(paddle.reshape(maps, [-1, 8]), 0.3)
    out = paddle.nn.functional.softmax(paddle.static.nn.fc(flat, 3))
    return [image], [out], {"image": RNG.randn(2, 1, 6, 6).astype("float32")}


def numbers():
    """Ops whose attributes have types of their own in some version."""
    x = paddle.static.data("x", [None, 3])
    known = paddle.assign(np.array([1, 2.5, -3], "float32"))
    count = paddle.cast(paddle.assign(np.array([[2**40]], "int64")), "float32")
    weight = paddle.static.create_parameter([3], "float32", name="weight")
    changed = paddle.clip(paddle.pow(x * weight + known, 3.0), -4.5, 5.0) + paddle.full([1], 0.125)
    chosen = paddle.where(x > 0, changed, paddle.full_like(x, -1.5))
    return [x], [chosen, x[:, 1:3] + count], {"x": RNG.randn(4, 3).astype("float32")}


def save_static(folder, make):
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        inputs, outputs, feed = make()
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        prefix = str(folder / make.__name__)
        paddle.static.save_inference_model(prefix, inputs, outputs, exe, program=main)
        model, names, fetches = paddle.static.load_inference_model(prefix, exe)
        computed = exe.run(model, feed=feed, fetch_list=fetches)
        paddle.static.save(main, f"{prefix}_state")
    results = {f"out{index}": value for index, value in enumerate(computed)}
    np.savez_compressed(f"{prefix}.npz", names=np.array(names), **feed, **results)
    for end in ("", "_state"):
        without_paths(Path(f"{prefix}{end}.pdmodel"))


def without_paths(path):
    """Call stacks of this machine do not belong into files that others read."""
    program = framework_pb2.ProgramDesc.FromString(path.read_bytes())
    for block in program.blocks:
        for op in block.ops:
            for attr in op.attrs:
                if attr.name == "op_callstack":
                    attr.ClearField("strings")
    path.write_bytes(program.SerializeToString())


def save_dynamic(folder):
    paddle.disable_static()
    paddle.seed(3)
    net = paddle.nn.Sequential(paddle.nn.Linear(4, 5), paddle.nn.ReLU(), paddle.nn.Linear(5, 2))
    optimizer = paddle.optimizer.Adam(0.1, parameters=net.parameters())
    net(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    paddle.save(net.state_dict(), str(folder / "net.pdparams"))
    paddle.save(net.state_dict(), str(folder / "net2.pdparams"), protocol=2)
    paddle.save(optimizer.state_dict(), str(folder / "net.pdopt"))
    tensors = {"a": paddle.ones([2]), "nested": {"b": [paddle.to_tensor([1.5]), 3, "x"]}}
    paddle.save(tensors, str(folder / "tensors.pdparams"))
    # of dynamic nets, the static form comes from a trace
    paddle.jit.save(net, str(folder / "traced"), input_spec=[paddle.static.InputSpec([None, 4], "float32", "x")])
    without_paths(folder / "traced.pdmodel")
    values = {name: value.numpy() for name, value in net.state_dict().items()}
    x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    result = net(paddle.to_tensor(x)).numpy()
    np.savez_compressed(str(folder / "traced.npz"), names=np.array(["x"]), x=x, out0=result)
    np.savez_compressed(str(folder / "net.npz"), **values)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    paddle.enable_static()
    for make in (ctr, cnn, numbers):
        save_static(folder, make)
    save_dynamic(folder)


main()
