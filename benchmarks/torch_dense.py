"""The dense step by eager PyTorch, one thread; runs in its own environment, prints median milliseconds.

``python torch_dense.py STEPS BATCH SIZE SIZE ...``
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
import time
from typing import Any


def main() -> None:
    """Forward, backward and sgd of the net that ``benchmarks.execution`` runs."""
    torch: Any = importlib.import_module("torch")

    torch.set_num_threads(1)
    steps, batch, *sizes = map(int, sys.argv[1:])
    layers: list[Any] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.rand(batch, sizes[0]), torch.rand(batch, 1).round()
    ms = []
    for _ in range(steps + 3):
        start = time.perf_counter()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        ms.append((time.perf_counter() - start) * 1e3)
    print(statistics.median(ms[3:]))


if __name__ == "__main__":
    main()
