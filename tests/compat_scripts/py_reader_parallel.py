"""As written for Fluid 1.2: a py_reader, ParallelExecutor, and a test program that shares the parameters."""
from __future__ import print_function

import sys

import numpy as np
import paddle
import paddle.fluid as fluid


def reader():
    rng = np.random.RandomState(7)
    for _ in range(40):
        ids = rng.randint(0, 20, rng.randint(1, 5))
        yield ids.tolist(), [int(ids.sum() % 2)]


def network(name):
    py_reader = fluid.layers.py_reader(
        capacity=16, shapes=[[-1, 1], [-1, 1]], dtypes=['int64', 'int64'], lod_levels=[1, 0], name=name,
        use_double_buffer=True)
    words, label = fluid.layers.read_file(py_reader)
    emb = fluid.layers.embedding(words, size=[20, 8], is_sparse=True,
                                 param_attr=fluid.ParamAttr(name='emb', initializer=fluid.initializer.Constant(0.1)))
    pooled = fluid.layers.sequence_pool(emb, pool_type='sum')
    predict = fluid.layers.fc(pooled, size=2, act='softmax', param_attr=fluid.ParamAttr(
        name='fc_w', initializer=fluid.initializer.Constant(0.05)), bias_attr=fluid.ParamAttr(name='fc_b'))
    cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    acc = fluid.layers.accuracy(input=predict, label=label)
    return py_reader, cost, acc


def main():
    use_cuda = len(sys.argv) > 1 and sys.argv[1] == 'gpu'
    main_program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_program, startup):
        with fluid.unique_name.guard():
            train_reader, loss, acc = network('train_reader')
            fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)
    test_program = fluid.Program()
    with fluid.program_guard(test_program, startup):
        with fluid.unique_name.guard():
            test_reader, test_loss, test_acc = network('test_reader')
    test_program = test_program.clone(for_test=True)
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)
    exe.run(startup)
    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_threads = 1
    build_strategy = fluid.BuildStrategy()
    build_strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    train_exe = fluid.ParallelExecutor(use_cuda=use_cuda, loss_name=loss.name, main_program=main_program,
                                       exec_strategy=exec_strategy, build_strategy=build_strategy)
    test_exe = fluid.ParallelExecutor(use_cuda=use_cuda, main_program=test_program, share_vars_from=train_exe)
    train_reader.decorate_paddle_reader(paddle.batch(paddle.reader.buffered(reader, 8), batch_size=8))
    test_reader.decorate_paddle_reader(paddle.batch(reader, batch_size=8))
    for epoch in range(2):
        train_reader.start()
        losses = []
        try:
            while True:
                value, = train_exe.run(fetch_list=[loss.name])
                losses.append(np.mean(value))
        except fluid.core.EOFException:
            train_reader.reset()
        test_reader.start()
        tested = []
        try:
            while True:
                tested.append(np.mean(test_exe.run(fetch_list=[test_loss.name, test_acc.name]), axis=1))
        except fluid.core.EOFException:
            test_reader.reset()
        print('epoch %d train %.5f test %.5f' % (epoch, np.mean(losses), np.mean([t[0] for t in tested])))


if __name__ == '__main__':
    main()
