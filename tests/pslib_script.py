"""A script for pslib as users write it: ``pslib_script.py FOLDER``; roles by Fluid's environment."""

import os
import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base.role_maker import GeneralRoleMaker
from paddle.fluid.incubate.fleet.parameter_server.pslib import fleet
from paddle.fluid.incubate.fleet.utils.fleet_util import FleetUtil

FOLDER = sys.argv[1]


def main():
    fleet.init(GeneralRoleMaker(path=FOLDER))
    fleet._set_client_communication_config(500000, 10000, 3)
    ids = fluid.layers.data(name="ids", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    emb = fluid.layers.embedding(
        input=ids, size=[1, 4], is_sparse=True, is_distributed=True, param_attr=fluid.ParamAttr(name="emb")
    )
    fc = fluid.layers.fc(input=fluid.layers.sequence_pool(input=emb, pool_type="sum"), size=2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=fc, label=label))
    _, _, (batch_pos, batch_neg, pos, neg) = fluid.layers.auc(input=fc, label=label, num_thresholds=100)
    optimizer = fleet.distributed_optimizer(fluid.optimizer.Adam(learning_rate=0.01), strategy={"use_cvm": False})
    optimizer.minimize([loss], [fluid.global_scope()])
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fleet.init_worker()
    mine = os.path.join(FOLDER, "part-%d" % fleet.worker_index())
    with open(mine, "w") as stream:
        for i in range(8):
            stream.write("2 %d %d 1 %d\n" % (i % 3, 7 + i % 2, i % 2))
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([ids, label])
    dataset.set_batch_size(4)
    dataset.set_filelist([mine])
    dataset.load_into_memory()
    dataset.local_shuffle()
    exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset)
    util = FleetUtil()
    util.print_global_auc(fluid.global_scope(), stat_pos=pos.name, stat_neg=neg.name, print_prefix="pass 0")
    total = np.zeros(2)
    fleet._role_maker._node_type_comm.Allreduce(np.array([1.0, fleet.worker_index()]), total)
    counted = np.zeros(1)
    fleet._role_maker.all_reduce_worker(
        np.array([fluid.global_scope().find_var(pos.name).get_tensor()]).sum(keepdims=True).reshape(-1), counted
    )
    print("total %s counted %d" % (total.tolist(), counted[0]), flush=True)
    util.save_fleet_model(os.path.join(FOLDER, "model"))
    fleet._role_maker._barrier_worker()
    if fleet._role_maker.is_first_worker():
        print("saved %s" % sorted(os.listdir(os.path.join(FOLDER, "model"))), flush=True)
    fleet.clear_model()
    fleet.load_model(os.path.join(FOLDER, "model"))
    fleet.stop_worker()


if __name__ == "__main__":
    main()
