"""A table of fluidlite in a PyTorch model trains as `torch.nn.Embedding` does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.ps_client import DenseParameterInfo, EmbeddingTableInfo, PSClient, PSModel, Tensor
from tests.shared_data import REPO

torch = pytest.importorskip("torch")
HEIGHT, WIDTH = 12, 3


@pytest.fixture
def embedding_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`TableEmbedding` of the example."""
    monkeypatch.syspath_prepend(str(REPO / "examples"))
    for name in ("client_numpy", "client_torch"):
        sys.modules.pop(name, None)
    import client_torch

    return client_torch.TableEmbedding


def test_training_is_that_of_an_embedding_of_torch(embedding_class: Any) -> None:
    described = PSModel(
        [EmbeddingTableInfo("emb", WIDTH)],
        [DenseParameterInfo("weight", [1, 2 * WIDTH]), DenseParameterInfo("bias", [1])],
        "sgd",
        {"learning_rate": 0.1},
        settings=fluid.DistributeTranspilerConfig(min_block_size=1),
    )
    (client,) = PSClient.local(described, 2)
    local, linear = torch.nn.Embedding(HEIGHT, WIDTH), torch.nn.Linear(2 * WIDTH, 1)
    with torch.no_grad():
        local.weight.copy_(torch.from_numpy(client.pull_embedding_vectors("emb", np.arange(HEIGHT))))
    client.push_model([Tensor(name, param) for name, param in linear.named_parameters()])
    table, remote = embedding_class(client, "emb"), torch.nn.Linear(2 * WIDTH, 1)
    optimizer = torch.optim.SGD([*local.parameters(), *linear.parameters()], 0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(HEIGHT, (5, 2), generator=generator)
        optimizer.zero_grad()
        expected = linear(local(ids).flatten(1)).square().sum()
        expected.backward()
        optimizer.step()

        values, _ = client.pull_dense_parameters()
        with torch.no_grad():
            for name, param in remote.named_parameters():
                param.copy_(torch.from_numpy(values[name]))
        remote.zero_grad()
        loss = remote(table(ids).flatten(1)).square().sum()
        loss.backward()
        torch.testing.assert_close(loss, expected)
        grads = [Tensor(name, param.grad) for name, param in remote.named_parameters()]
        assert client.push_gradients(grads, table.take_gradients())[0]
    rows = torch.from_numpy(client.pull_embedding_vectors("emb", torch.arange(HEIGHT)))
    torch.testing.assert_close(rows, local.weight.detach())


def test_two_lookups_of_one_table_are_added(embedding_class: Any) -> None:
    settings = fluid.DistributeTranspilerConfig(sync_mode=False)
    described = PSModel([EmbeddingTableInfo("emb", 1, "zeros")], (), "sgd", {"learning_rate": 1.0}, settings=settings)
    (client,) = PSClient.local(described)
    table = embedding_class(client, "emb")
    (table(torch.tensor([1, 1, 2])).sum() + table(torch.tensor([[1]])).sum()).backward()
    client.push_gradients([], table.take_gradients())
    assert client.pull_embedding_vectors("emb", [1, 2]).tolist() == [[-3.0], [-1.0]]
    assert table.take_gradients() == []
    assert table.eval()(torch.tensor([9])).tolist() == [[0.0]]
