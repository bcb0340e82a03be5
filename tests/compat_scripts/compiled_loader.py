"""As written for Fluid 1.8: DataLoader, CompiledProgram, profiler, save and load, inference on what was trained."""
import os
import sys

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.profiler as profiler

if hasattr(paddle, 'enable_static'):
    paddle.enable_static()


def batches():
    rng = np.random.RandomState(1)
    for _ in range(6):
        x = rng.rand(8, 4).astype('float32')
        yield x, (x.sum(axis=1, keepdims=True) > 2).astype('int64')


def main(folder):
    fluid.require_version('1.6.0')
    np.random.seed(1)
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 90
    image = fluid.data(name='image', shape=[None, 4], dtype='float32')
    label = fluid.data(name='label', shape=[None, 1], dtype='int64')
    loader = fluid.io.DataLoader.from_generator(feed_list=[image, label], capacity=4, iterable=True)
    loader.set_batch_generator(batches, places=fluid.cpu_places())
    hidden = fluid.layers.dropout(fluid.layers.fc(image, 8, act='relu'), 0.1, is_test=False)
    logits = fluid.layers.fc(hidden, 2)
    loss = fluid.layers.reduce_mean(fluid.layers.softmax_with_cross_entropy(logits, label))
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=0.05).minimize(loss)
    place = fluid.CPUPlace() if not fluid.core.is_compiled_with_cuda() else fluid.CUDAPlace(0)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    build.fuse_all_reduce_ops = True
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, build_strategy=build, exec_strategy=fluid.ExecutionStrategy(), places=fluid.cpu_places(1))
    losses = []
    with profiler.profiler('CPU', 'total', os.path.join(folder, 'profile')):
        for epoch in range(4):
            for data in loader():
                loss_value, = exe.run(compiled, feed=data, fetch_list=[loss], use_program_cache=True)
                losses.append(float(loss_value))
    print('better', losses[-1] < losses[0], len(losses))
    value_before = exe.run(test_program, feed=data, fetch_list=[loss.name])[0]
    fluid.save(fluid.default_main_program(), os.path.join(folder, 'model'))
    scope = fluid.global_scope()
    for parameter in fluid.default_main_program().all_parameters():
        tensor = scope.find_var(parameter.name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), 'float32'), place)
    changed = exe.run(test_program, feed=data, fetch_list=[loss.name])[0]
    fluid.load(fluid.default_main_program(), os.path.join(folder, 'model'), exe)
    again = exe.run(test_program, feed=data, fetch_list=[loss.name])[0]
    print('loaded', np.array_equal(value_before, again), np.array_equal(value_before, changed))


if __name__ == '__main__':
    main(sys.argv[1])
