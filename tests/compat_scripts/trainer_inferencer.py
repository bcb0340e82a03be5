"""As written for Fluid 0.14: fluid.Trainer with an event handler, then fluid.Inferencer."""
from __future__ import print_function

import sys

import numpy as np
import paddle
import paddle.fluid as fluid


def samples():
    rng = np.random.RandomState(3)
    weight = np.arange(1, 5, dtype='float32')
    for _ in range(60):
        x = rng.rand(4).astype('float32')
        yield x, np.array([x.dot(weight)], 'float32')


def inference_program():
    x = fluid.layers.data(name='x', shape=[4], dtype='float32')
    return fluid.layers.fc(input=x, size=1, act=None)


def train_program():
    y = fluid.layers.data(name='y', shape=[1], dtype='float32')
    y_predict = inference_program()
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))
    return [loss, y_predict]


def optimizer_program():
    return fluid.optimizer.SGD(learning_rate=0.1)


def main(folder):
    place = fluid.CPUPlace()
    config = fluid.CheckpointConfig(folder + '/checkpoints', max_num_checkpoints=2, step_interval=2)
    trainer = fluid.Trainer(train_func=train_program, place=place, optimizer_func=optimizer_program,
                            checkpoint_config=config)
    seen = []

    def event_handler(event):
        if isinstance(event, fluid.BeginEpochEvent):
            seen.append('begin')
        if isinstance(event, fluid.EndStepEvent):
            seen.append(float(event.metrics[0]))
            if event.epoch == 3:
                trainer.stop()
        if isinstance(event, fluid.EndEpochEvent):
            test, _ = trainer.test(reader=paddle.batch(samples, batch_size=20), feed_order=['x', 'y'])
            print('epoch %d: %.4f' % (event.epoch, test))
            trainer.save_params(folder + '/params')

    trainer.train(reader=paddle.batch(samples, batch_size=10), num_epochs=8, event_handler=event_handler,
                  feed_order=['x', 'y'])
    print('steps', len(seen) - seen.count('begin'))
    trainer.save_inference_model(folder + '/model', ['x'], [1])
    inferencer = fluid.Inferencer(infer_func=inference_program, param_path=folder + '/params', place=place)
    x = np.ones([2, 4], 'float32')
    results = inferencer.infer({'x': x})
    print('infer', results[0].shape, np.allclose(results[0][0], results[0][1]))


if __name__ == '__main__':
    main(sys.argv[1])
