"""Saves a model, then predicts by fluid.core.AnalysisConfig and NativeConfig."""
import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.core import AnalysisConfig, NativeConfig, PaddleBuf, PaddleDType, PaddleTensor, create_paddle_predictor


def save(folder):
    words = fluid.data(name='words', shape=[None, 1], dtype='int64', lod_level=1)
    x = fluid.data(name='x', shape=[None, 3], dtype='float32')
    emb = fluid.layers.embedding(words, size=[10, 2])
    out = fluid.layers.fc([fluid.layers.sequence_pool(emb, 'sum'), x], size=2)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(folder, ['words', 'x'], [out], exe, model_filename='model', params_filename='params')
    feed = {'words': fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace()), 'x': np.ones([2, 3], 'float32')}
    return exe.run(feed=feed, fetch_list=[out])[0]


def main(folder):
    expected = save(folder)
    config = AnalysisConfig(folder + '/model', folder + '/params')
    config.disable_gpu()
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    config.set_cpu_math_library_num_threads(2)
    predictor = create_paddle_predictor(config)

    words = PaddleTensor(np.array([[1], [2], [3]], 'int64'), 'words')
    words.lod = [[0, 2, 3]]
    x = PaddleTensor()
    x.name = 'x'
    x.shape = [2, 3]
    x.dtype = PaddleDType.FLOAT32
    x.data = PaddleBuf([1.0] * 6)
    outputs = predictor.run([words, x])
    print('analysis', outputs[0].shape, np.allclose(outputs[0].as_ndarray(), expected),
          np.allclose(outputs[0].data.float_data(), expected.ravel()), outputs[0].dtype == PaddleDType.FLOAT32)

    config = AnalysisConfig(folder + '/model', folder + '/params')
    config.switch_use_feed_fetch_ops(False)
    zero_copy = create_paddle_predictor(config)
    first, second = (zero_copy.get_input_tensor(name) for name in zero_copy.get_input_names())
    first.copy_from_cpu(np.array([[1], [2], [3]], 'int64'))
    first.set_lod([[0, 2, 3]])
    second.copy_from_cpu(np.ones([2, 3], 'float32'))
    zero_copy.zero_copy_run()
    result = zero_copy.get_output_tensor(zero_copy.get_output_names()[0])
    print('zero copy', result.shape(), np.allclose(result.copy_to_cpu(), expected))

    native = NativeConfig()
    native.prog_file, native.param_file, native.use_gpu = folder + '/model', folder + '/params', False
    native.specify_input_name = True
    outputs = create_paddle_predictor(native).run([x, words])
    print('native', np.allclose(outputs[0].as_ndarray(), expected))


if __name__ == '__main__':
    main(sys.argv[1])
