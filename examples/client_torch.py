"""A PyTorch model whose embedding is a table of fluidlite's servers; autograd goes through it.

    python examples/client_torch.py
    fluidlite launch --pservers 2 --trainers 2 examples/client_torch.py

Needs torch. The data are those of client_numpy.py: a click depends on four 64-bit ids. Alone, the servers are in this process.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
from client_numpy import IDS, WIDTH, batch

import fluidlite as fluid
from fluidlite.ps_client import DenseParameterInfo, EmbeddingTableInfo, PSClient, PSModel, Tensor, serve


class TableEmbedding(torch.nn.Module):
    """Rows of a table by ids of any shape, as `torch.nn.Embedding`, but the rows stay on servers."""

    def __init__(self, client, name):
        super().__init__()
        self._client, self._name, self._used = client, name, []

    def forward(self, ids):
        unique, inverse = torch.unique(ids, return_inverse=True)
        rows = self._client.pull_embedding_vectors(self._name, unique, read_only=not self.training)
        rows = torch.from_numpy(rows).requires_grad_(self.training)
        if self.training:
            self._used.append((unique, rows))
        return torch.nn.functional.embedding(inverse, rows)

    def take_gradients(self):
        """What `backward` left at the rows that were looked up since the last call."""
        used, self._used = self._used, []
        return [Tensor(self._name, rows.grad, ids) for ids, rows in used if rows.grad is not None]


class Clicks(torch.nn.Module):
    """A click's logit: the rows of its ids, side by side, through two layers."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.hidden = torch.nn.Linear(IDS * WIDTH, 16)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, ids):
        return self.out(torch.relu(self.hidden(self.embedding(ids).flatten(1)))).squeeze(1)


def model(trainers):
    """What the servers hold: the table, and a parameter for each of the module's."""
    dense = [DenseParameterInfo(name, list(param.shape)) for name, param in Clicks(None).named_parameters()]
    settings = fluid.DistributeTranspilerConfig(sync_mode=False, lr_staleness_modulation=True)
    return PSModel([EmbeddingTableInfo("emb", WIDTH)], dense, "Adam", {"learning_rate": 0.01}, trainers, settings)


@torch.no_grad()
def pull(client, module):
    """Give the module the servers' dense parameters."""
    values, _ = client.pull_dense_parameters()
    for name, param in module.named_parameters():
        param.copy_(torch.from_numpy(values[name]))


def train(client, module, steps, size):
    random = np.random.default_rng(client.trainer_id)
    client.push_model([Tensor(name, param) for name, param in module.named_parameters()])
    losses = []
    for step in range(steps):
        pull(client, module)
        module.zero_grad()
        ids, label = map(torch.from_numpy, batch(random, size))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(ids), label)
        loss.backward()
        grads = [Tensor(name, param.grad) for name, param in module.named_parameters()]
        _, version = client.push_gradients(grads, module.embedding.take_gradients())
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1} version {version} loss {np.mean(losses[-50:]):.4f}", flush=True)


@torch.no_grad()
def evaluate(client, module):
    """Share of right predictions on new examples; lookups make no rows."""
    pull(client, module.eval())
    ids, label = map(torch.from_numpy, batch(np.random.default_rng(99), 2000))
    return ((module(ids) > 0) == (label > 0)).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    role = os.environ.get("TRAINING_ROLE")
    described = model(int(os.environ.get("PADDLE_TRAINERS_NUM", "1")))
    if role == "PSERVER":
        serve(described)
        return
    torch.manual_seed(0)
    with PSClient(described) if role else PSClient.local(described)[0] as client:
        module = Clicks(TableEmbedding(client, "emb"))
        train(client, module, args.steps, args.batch)
        print(f"right {evaluate(client, module):.3f}")


if __name__ == "__main__":
    main()
