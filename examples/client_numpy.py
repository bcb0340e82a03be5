"""A model without a graph: numpy computes, fluidlite's servers hold the embedding and the dense parameters.

    python examples/client_numpy.py
    fluidlite launch --pservers 2 --trainers 2 examples/client_numpy.py

Predicts clicks on made-up data: whether one is made depends on four 64-bit ids. Alone, the servers are in this process.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

import fluidlite as fluid
from fluidlite.ps_client import DenseParameterInfo, EmbeddingTableInfo, PSClient, PSModel, Tensor, serve

WIDTH, IDS = 8, 4
KNOWN = np.random.default_rng(1).integers(-(2**63), 2**63, 200)  # the ids that occur


def model(trainers, checkpoint_dir=""):
    """What the servers hold. Every push counts by itself; one that is more than a version behind is refused."""
    settings = fluid.DistributeTranspilerConfig(
        grads_to_wait=1, distinct_trainers=False, sync_version_tolerance=1, checkpoint_dir=checkpoint_dir
    )
    return PSModel(
        tables=[EmbeddingTableInfo("emb", WIDTH)],
        dense=[DenseParameterInfo("w", [WIDTH]), DenseParameterInfo("b", [1])],
        optimizer="Adagrad",
        optimizer_args={"learning_rate": 0.2},
        trainers=trainers,
        settings=settings,
    )


def batch(random, size):
    """Ids [size, 4] int64 and labels [size]: clicked if most of the ids are even."""
    ids = KNOWN[random.integers(0, len(KNOWN), (size, IDS))]
    return ids, (np.sum(ids % 2 == 0, axis=1) > IDS / 2).astype(np.float32)


def gradients(rows, w, b, label):
    """Loss of ``rows`` [size, 4, WIDTH], and its gradients by rows, w and b."""
    pooled = rows.sum(axis=1)
    predicted = 1 / (1 + np.exp(-(pooled @ w + b)))
    loss = -np.mean(np.log(np.where(label > 0, predicted, 1 - predicted)))
    error = (predicted - label) / len(label)
    by_row = np.repeat((error[:, None] * w)[:, None], IDS, axis=1)
    return loss, by_row, pooled.T @ error, error.sum(keepdims=True)


def train(client, steps, size):
    random = np.random.default_rng(client.trainer_id)
    w = np.random.default_rng(0).normal(0, 0.1, WIDTH).astype(np.float32)
    client.push_model([Tensor("w", w), Tensor("b", np.zeros(1, np.float32))])
    losses, repeated = [], 0
    for step in range(steps):
        ids, label = batch(random, size)
        accepted = False
        while not accepted:  # others were faster: pull and compute again
            dense, _ = client.pull_dense_parameters()
            rows = client.pull_embedding_vectors("emb", ids)
            loss, by_row, by_w, by_b = gradients(rows, dense["w"], dense["b"], label)
            accepted, version = client.push_gradients(
                [Tensor("w", by_w), Tensor("b", by_b)], [Tensor("emb", by_row, ids)]
            )
            repeated += not accepted
        losses.append(loss)
        if step % 50 == 49:
            print(f"step {step + 1} version {version} loss {np.mean(losses[-50:]):.4f} repeated {repeated}", flush=True)


def evaluate(client):
    """Share of right predictions on new examples; lookups make no rows."""
    ids, label = batch(np.random.default_rng(99), 2000)
    dense, _ = client.pull_dense_parameters()
    rows = client.pull_embedding_vectors("emb", ids, read_only=True)
    return np.mean((rows.sum(axis=1) @ dense["w"] + dense["b"] > 0) == (label > 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--checkpoint-dir", default="")
    args = parser.parse_args()

    role = os.environ.get("TRAINING_ROLE")
    described = model(int(os.environ.get("PADDLE_TRAINERS_NUM", "1")), args.checkpoint_dir)
    if role == "PSERVER":
        serve(described)
        return
    with PSClient(described) if role else PSClient.local(described)[0] as client:
        train(client, args.steps, args.batch)
        print(f"right {evaluate(client):.3f}")


if __name__ == "__main__":
    main()
