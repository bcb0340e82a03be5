"""What a user of the package writes, with every type checked: ``mypy --strict`` must accept it and it must run."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import fluidlite as fluid


def model() -> tuple[fluid.Variable, fluid.Variable]:
    """Append a model; returns (probability, mean loss)."""
    ids = fluid.data("ids", [None, 2], "int64")
    numbers = fluid.data("numbers", [None, 3], "float32")
    label = fluid.data("label", [None, 1], "float32")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-0.1, 0.1))
    rows = fluid.embedding(ids, size=[10**9, 4], is_sparse=True, is_distributed=True, param_attr=table)
    flat = fluid.layers.reshape(rows, [-1, 8])
    hidden = fluid.layers.fc(fluid.layers.concat([flat, numbers * 0.5], axis=1), size=8, act="relu")
    logit = (fluid.layers.fc(hidden, 1) + 1.0) / 2.0 - fluid.layers.reduce_mean(hidden, dim=1, keep_dim=True) ** 2.0
    assert_type(-logit, fluid.Variable)
    assert_type(1.0 - logit * logit, fluid.Variable)
    assert_type(logit >= label, fluid.Variable)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    return fluid.layers.sigmoid(logit), loss


def main() -> list[float]:
    """Train a few steps; returns the losses."""
    main_program, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main_program, startup), fluid.name_scope("net"):
        probability, loss = model()
        test_program = main_program.clone(for_test=True)
        rate = fluid.layers.exponential_decay(0.1, decay_steps=10, decay_rate=0.9)
        fluid.optimizer.Adam(rate, lazy_mode=True, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(loss)

    assert_type(loss, fluid.Variable)
    assert_type(loss.name, str)
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {
        "ids": np.array([[7, -1], [2**62, 7]]),
        "numbers": np.ones([2, 3], np.float32),
        "label": np.array([[1], [0]], np.float32),
    }
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        losses = [float(exe.run(main_program, feed=feed, fetch_list=[loss])[0][0]) for _ in range(3)]
        (answer,) = exe.run(test_program, feed=feed, fetch_list=[probability])
    exe.close()
    assert answer.shape == (2, 1)

    transpiler = fluid.DistributeTranspiler(fluid.DistributeTranspilerConfig())
    transpiler.transpile(0, program=main_program, pservers="127.0.0.1:1", trainers=1, startup_program=startup)
    assert_type(transpiler.get_trainer_program(), fluid.Program)
    assert_type(transpiler.get_pserver_programs("127.0.0.1:1"), tuple[fluid.Program, fluid.Program])
    return losses


def mistakes(x: fluid.Variable) -> None:
    """Never called; every line is an error that a type checker must find."""
    fluid.layers.fc(x, "wide")  # type: ignore[arg-type]
    fluid.layers.fc(x, 8, aktivation="relu")  # type: ignore[call-arg]
    fluid.optimizer.Adam(x.name)  # type: ignore[arg-type]
    print(x.nam)  # type: ignore[attr-defined]


if __name__ == "__main__":
    print(main())
