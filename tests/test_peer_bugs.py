"""Faults that users of similar systems reported, as small cases named after their ids.

Cases that belong to one part of the project stand in the tests of that part; here are those that need several parts, and
the account of all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import PeerLostError
from fluidlite.protocol.messages import Gradient, Push, RowRequest
from fluidlite.values.lod import lod_from_lengths
from tests.shared_data import REPO, shared
from tests.test_rows import column, embedding_net
from tests.training_jobs import Cluster, Local, Programs, assert_states

#: cases that are no test, and why
PAGE: Final = REPO / "docs" / "peer_bugs.md"
_LINE: Final = re.compile(r"^\| ([A-Z]\d+) \| (.+?) +\|$", re.MULTILINE)
_NAMED: Final = re.compile(r"def test_((?:[a-z]\d+_)+)", re.IGNORECASE)


def test_every_case_is_a_named_test_or_the_page_says_why_not() -> None:
    text = shared("cases", "PEER_BUGS.md").read_text(encoding="utf-8")
    cases = set(re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE))
    tested: set[str] = set()
    for path in (REPO / "tests").rglob("test_*.py"):
        for ids in _NAMED.findall(path.read_text(encoding="utf-8")):
            tested.update(ids.upper().strip("_").split("_"))
    lines = _LINE.findall(PAGE.read_text(encoding="utf-8"))
    named = {id for id, _ in lines}
    assert len(cases) > 100
    assert len(named) == len(lines), "one line each"
    assert sorted(cases - tested - named) == []
    assert sorted(named & tested) == [], "these are tested by now"
    assert sorted(named - cases) == []


# ---- what a step asks and sends


class Traffic:
    """What a cluster's servers are asked and sent."""

    def __init__(self, cluster: Cluster) -> None:
        self.pulls: list[tuple[str, list[RowRequest]]] = []
        self.gradients: list[tuple[str, Gradient]] = []
        for endpoint, service in cluster.inside.services.items():
            self._watch(endpoint, service)

    def _watch(self, endpoint: str, service: Any) -> None:
        pull, commit = service.pull, service.commit

        def watched_pull(identity: Any, requests: Any) -> Any:
            self.pulls.append((endpoint, [r for r in requests if isinstance(r, RowRequest)]))
            return pull(identity, requests)

        def watched_commit(push: Push) -> Any:
            self.gradients += [(endpoint, gradient) for gradient in push.gradients]
            return commit(push)

        service.pull, service.commit = watched_pull, watched_commit


def several_lookups(kind: str = "table") -> Programs:
    """Three features on one table, one of them bags; adagrad."""

    def build() -> fluid.Variable:
        attr = fluid.ParamAttr("emb", fluid.initializer.Uniform(-0.5, 0.5))
        options: dict[str, Any] = {"param_attr": attr, "dtype": "float64", "is_sparse": True}
        options["is_distributed"] = kind == "table"
        one, two = (fluid.data(name, [None, 1], "int64") for name in ("one", "two"))
        bag = fluid.data("bag", [None, 1], "int64", lod_level=1)
        rows = [fluid.layers.embedding(ids, [50, 2], **options) for ids in (one, two)]
        rows.append(fluid.layers.sequence_pool(fluid.layers.embedding(bag, [50, 2], **options), "average"))
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.concat(rows, axis=1)))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        return loss

    return Programs(build)


def features(*ids: int) -> dict[str, Any]:
    """Each example has its id in ``one``, the next one in ``two``, and both in its bag."""
    one = np.array(ids, np.int64).reshape(-1, 1)
    bag = np.stack([one, one + 1], axis=1).reshape(-1, 1)
    return {"one": one, "two": one + 1, "bag": fluid.LoDTensor(bag, lod_from_lengths([[2] * len(ids)]))}


@pytest.mark.parametrize("kind", ["table", "sparse"])
def test_C27_C24_several_features_on_one_table_are_one_pull_and_one_gradient(kind: str) -> None:
    programs = several_lookups(kind)
    local = Local(programs)
    with closing(Cluster(programs, 2)) as cluster:
        cluster.step([features(1, 4, 4)])
        local.step(features(1, 4, 4))
        traffic = Traffic(cluster)
        assert cluster.step([features(4, 7, 30)]) == [local.step(features(4, 7, 30))]
        assert_states(cluster.state(), local.state())
    assert sorted(endpoint for endpoint, _ in traffic.pulls) == ["pserver0:0", "pserver1:0"]
    assert sorted(endpoint for endpoint, _ in traffic.gradients) == ["pserver0:0", "pserver1:0"]
    pushed = [(endpoint, int(id)) for endpoint, gradient in traffic.gradients for id in gradient.rows]
    assert len(pushed) == len(set(pushed)) == 6


@pytest.mark.parametrize("kind", ["table", "sparse"])
def test_B101_C19_what_travels_is_measured_by_the_batch_not_the_height(kind: str) -> None:
    height, width = 10**6, 3
    programs = embedding_net(kind, height=height, width=width, optimizer=lambda: fluid.optimizer.Adagrad(0.1))
    ids = np.arange(10) * 99_999
    with closing(Cluster(programs, 2)) as cluster:
        traffic = Traffic(cluster)
        cluster.step([column(*ids, *ids)])
        own = cluster.inside.trainers[0].scope.get("emb")
    pulled = sum(request.ids.size for _, requests in traffic.pulls for request in requests)
    pushed = sum(gradient.value.size for _, gradient in traffic.gradients)
    assert (pulled, pushed) == (len(ids), len(ids) * width)
    assert own is None, "the trainer holds no copy"


def test_C26_rows_that_a_trainer_holds_are_never_written_back() -> None:
    """Another trainer's step between a pull and its push is not undone."""
    programs = embedding_net(optimizer=lambda: fluid.optimizer.SGD(0.25), initial=fluid.initializer.Constant(1.0))
    with closing(Cluster(programs, 2, 2, sync=False)) as cluster:
        first, second = cluster.inside.trainers
        service = cluster.inside.services["pserver0:0"]
        commit = service.commit

        def commit_after_the_other(*arguments: Any) -> Any:
            service.commit = commit
            second.run(column(2))
            return commit(*arguments)

        service.commit = commit_after_the_other
        first.run(column(2))
        np.testing.assert_allclose(cluster.state()["emb"][2], [0.0, 0.0])  # 1 - 2 * 0.25 * 2
        for trainer in (first, second):
            assert not [name for name in trainer.scope.local_var_names() if name.startswith("emb")]


def test_H12_a_pull_that_fails_is_an_error_and_no_zeros() -> None:
    with closing(Cluster(several_lookups(), 2)) as cluster:
        cluster.step([features(1, 2)])
        before = cluster.state()
        cluster.inside.services["pserver1:0"].stop("out of memory")
        with pytest.raises(PeerLostError, match=r"(?s)pull at pserver pserver1:0: out of memory.*in op prefetch"):
            cluster.inside.trainers[0].run(features(1, 2))
        assert_states(cluster.state(), before)


# ---- correctness


def test_B013_decay_of_a_table_where_one_server_gets_no_ids() -> None:
    decay = fluid.regularizer.L2Decay(0.1)
    programs = embedding_net(optimizer=lambda: fluid.optimizer.SGD(0.1, regularization=decay))
    local = Local(programs)
    with closing(Cluster(programs, 2)) as cluster:
        for feed in (column(1, 3), column(0, 2), column(2, 4)):
            cluster.step([feed])
            local.step(feed)
        assert_states(cluster.state(), local.state())
        shard = cluster.shards[1].get("emb").export()
        cluster.step([column(0, 2)])
        np.testing.assert_array_equal(cluster.shards[1].get("emb").export().value, shard.value)


def test_C16_auc_over_all_trainers_comes_from_their_histograms() -> None:
    def build() -> fluid.Variable:
        p, label = fluid.data("p", [None, 2], "float32"), fluid.data("label", [None, 1], "int64")
        fluid.layers.auc(p, label)
        loss = fluid.layers.mean(fluid.layers.fc(p, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    programs = Programs(build)
    auc = [op for op in programs.main.desc.root.ops if op.type == "auc"][-1]
    names = auc.input("StatPos") or "", auc.input("StatNeg") or ""
    random = np.random.default_rng(0)
    label = random.integers(0, 2, (200, 1))
    score = np.clip(random.normal(0.4 + 0.2 * label, 0.2), 0, 1).astype(np.float32)
    p = np.concatenate([1 - score, score], axis=1)
    with closing(Cluster(programs, 1, 2)) as cluster:
        cluster.step([{"p": p[:100], "label": label[:100]}, {"p": p[100:], "label": label[100:]}])
        merged = fluid.metrics.Auc()
        positive, negative = (sum(t.scope.get(name) for t in cluster.inside.trainers) for name in names)
        merged.stat_pos, merged.stat_neg = (np.array(stat).reshape(-1) for stat in (positive, negative))
    pairs = np.subtract.outer(score[label == 1], score[label == 0])
    assert merged.eval() == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean(), abs=1e-3)


# ---- saving and loading


def saved(cluster: Cluster, folder: Path) -> None:
    trainer = cluster.inside.trainers[0]
    with fluid.scope_guard(trainer.scope):
        fluid.io.save_persistables(trainer.executor, str(folder), trainer.main)


def loaded(cluster: Cluster, folder: Path) -> None:
    trainer = cluster.inside.trainers[0]
    with fluid.scope_guard(trainer.scope):
        fluid.io.load_persistables(trainer.executor, str(folder), trainer.main)


@pytest.mark.parametrize("make", [fluid.optimizer.Adam, fluid.optimizer.Adagrad, fluid.optimizer.Ftrl])
def test_K13_K11_K03_K23_B111_a_job_goes_on_with_other_numbers_of_servers_and_trainers(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    rate = fluid.layers.exponential_decay
    programs = embedding_net(optimizer=lambda: make(rate(0.1, 2, 0.5)), height=5, width=3)
    first, next_ = [column(0, 3, 7), column(-1, 3)], column(7, 2**40, 0)
    local = Local(programs)
    with closing(Cluster(programs, 2, 2)) as cluster:
        cluster.step(first)
        local.step(column(0, 3, 7, -1, 3))
        saved(cluster, tmp_path)
        at_save = cluster.state()
        expected = cluster.step([next_, next_])
        after = cluster.state()
    for servers, trainers in ((3, 2), (1, 2), (5, 1)):
        with closing(Cluster(programs, servers, trainers)) as cluster:
            loaded(cluster, tmp_path)
            assert_states(cluster.state(), at_save)
            losses = cluster.step([next_] * trainers)
            assert losses == expected[:trainers]
            assert_states(cluster.state(), after)


@pytest.mark.parametrize("servers", [1, 3])
def test_U06_a_table_is_served_from_its_file_or_by_live_servers(servers: int, tmp_path: Path) -> None:
    programs = several_lookups()
    pooled = next(op.output("Out") or "" for op in programs.main.desc.root.ops if op.type == "sequence_pool")
    with closing(Cluster(programs, servers)) as cluster:
        cluster.step([features(1, 4)])
        trainer = cluster.inside.trainers[0]
        (live,) = trainer.run(features(1, 4, 9), [pooled], trainer.main.clone(for_test=True))
        target = trainer.main.global_block().var(pooled)
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_inference_model(str(tmp_path), ["bag"], [target], trainer.executor, trainer.main)
        assert len(cluster.state()["emb"]) == 4, "nobody made a row for 9 or 10"
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        model, names, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (alone,) = exe.run(model, {names[0]: features(1, 4, 9)["bag"]}, targets)
    np.testing.assert_array_equal(alone, live)
    np.testing.assert_array_equal(alone[2], [0.0, 0.0])


# ---- memory


def resident() -> float:
    """Megabytes of memory that the process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")


def tiny() -> Programs:
    def build() -> fluid.Variable:
        x = fluid.data("x", [None, 1], "float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    return Programs(build)


@needs_proc
def test_B075_running_a_program_does_not_take_memory() -> None:
    local, feed = Local(tiny()), {"x": np.ones((1, 1), np.float32)}
    for _ in range(500):
        local.step(feed)
    before = resident()
    for _ in range(5000):
        local.step(feed)
    assert resident() - before < 5


@needs_proc
def test_B076_training_with_a_server_does_not_take_memory() -> None:
    feed = {"x": np.ones((1, 1), np.float32)}
    with closing(Cluster(tiny(), 1)) as cluster:
        for _ in range(500):
            cluster.step([feed])
        before = resident()
        for _ in range(5000):
            cluster.step([feed])
        assert resident() - before < 5


@needs_proc
def test_B120_one_loaded_model_in_many_threads(tmp_path: Path) -> None:
    programs = several_lookups()
    pooled = next(op.output("Out") or "" for op in programs.main.desc.root.ops if op.type == "sequence_pool")
    local = Local(programs)
    local.step(features(*range(20)))
    with fluid.scope_guard(local.scope):
        target = programs.main.global_block().var(pooled)
        fluid.io.save_inference_model(str(tmp_path), ["bag"], [target], local.executor, programs.main)
    scope, exe = fluid.Scope(), fluid.Executor()
    with fluid.scope_guard(scope):
        model, _, (target,) = fluid.io.load_inference_model(str(tmp_path), exe)

    def run(index: int) -> Any:
        return exe.run(model, {"bag": features(index, index + 7)["bag"]}, [target], scope=scope)[0]

    expected = [run(index) for index in range(8)]
    wrong: list[int] = []

    def repeat(index: int) -> None:
        wrong.extend(index for _ in range(500) if not np.array_equal(run(index), expected[index]))

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(8)]
    before = resident()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert resident() - before < 20


def test_P04_lazy_adam_works_on_the_rows_of_the_batch_whatever_the_height() -> None:
    height = 300_000
    programs = embedding_net("sparse", height=height, optimizer=lambda: fluid.optimizer.Adam(0.1, lazy_mode=True))
    local = Local(programs)
    local.step(column(0))
    before = local.scope.get("emb").copy()
    tracemalloc.start()
    local.step(column(5, 299_999))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    after = local.scope.get("emb")
    assert np.flatnonzero((after != before).any(axis=1)).tolist() == [5, 299_999]
    assert peak < before.nbytes / 10


# ---- install


def test_I01_I02_nothing_needs_to_be_compiled_and_the_oldest_dependencies_are_named() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all(re.fullmatch(r"[a-z]+>=[\d.]+", dependency) for dependency in project["dependencies"])
    assert project["requires-python"] == ">=3.11,<3.14"
    assert '["3.11", "3.12", "3.13"]' in (REPO / "noxfile.py").read_text(encoding="utf-8")
    # One extension, for any Python from 3.11 on, and the package works without it (`nox -s package` installs it so).
    assert {path.parent for path in (REPO / "fluidlite").rglob("*.c")} == {REPO / "fluidlite" / "kernels" / "c"}
    built = [path.name for path in (REPO / "fluidlite").rglob("*") if path.suffix in {".so", ".pyd"}]
    assert set(built) <= {"_c.abi3.so"}
    environment = os.environ | {"FLUIDLITE_KERNELS": "numpy"}
    code = "import sys, fluidlite; sys.exit('fluidlite.kernels._c' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
