"""Trains from a dataset whose files pass through this very script: `dataset_pipe.py parse` is the pipe command."""
import os
import sys

import paddle.fluid as fluid
from paddle.fluid.incubate import data_generator as dg


class Parser(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            label, words = line.rstrip('\n').split('\t')
            yield [('words', [int(w) for w in words.split()]), ('dense', [float(len(words)), 0.5]), ('label', [int(label)])]

        return samples


def train(path):
    words = fluid.layers.data(name='words', shape=[1], dtype='int64', lod_level=1)
    dense = fluid.layers.data(name='dense', shape=[2], dtype='float32')
    label = fluid.layers.data(name='label', shape=[1], dtype='int64')
    emb = fluid.layers.embedding(input=words, size=[50, 4], is_sparse=True, param_attr=fluid.ParamAttr(
        initializer=fluid.initializer.Constant(0.02)))
    hidden = fluid.layers.concat([fluid.layers.sequence_pool(input=emb, pool_type='average'), dense], axis=1)
    predict = fluid.layers.fc(input=hidden, size=2, act='softmax', param_attr=fluid.ParamAttr(
        initializer=fluid.initializer.Constant(0.01)))
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    auc, _, _ = fluid.layers.auc(input=predict, label=label)
    fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for kind in ('QueueDataset', 'InMemoryDataset'):
        dataset = fluid.DatasetFactory().create_dataset(kind)
        dataset.set_use_var([words, dense, label])
        dataset.set_batch_size(4)
        dataset.set_thread(2)
        dataset.set_pipe_command('%s %s parse' % (sys.executable, os.path.abspath(__file__)))
        dataset.set_filelist([path])
        if kind == 'InMemoryDataset':
            dataset.set_queue_num(2)
            dataset.preload_into_memory()
            dataset.wait_preload_done()
            print('lines', dataset.get_memory_data_size())
        exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset, thread=2, fetch_list=[loss],
                               fetch_info=[kind], print_period=2, debug=False)
    exe.infer_from_dataset(program=fluid.default_main_program(), dataset=dataset, fetch_list=[auc],
                           fetch_info=['auc'], print_period=2)


if __name__ == '__main__':
    if sys.argv[1] == 'parse':
        Parser().run_from_stdin()
    else:
        train(sys.argv[1])
