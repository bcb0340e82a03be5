"""Run by a Python that has onnxruntime: ``FOLDER NAME...``; says how far NAME.onnx is from the example in NAME.npz."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

folder = Path(sys.argv[1])
for name in sys.argv[2:]:
    path = folder / f"{name}.onnx"
    onnx.checker.check_model(onnx.load(path))
    session = onnxruntime.InferenceSession(str(path))
    example = np.load(folder / f"{name}.npz")
    results = session.run(None, {item.name: example[f"in_{item.name}"] for item in session.get_inputs()})
    worst = 0.0
    for index, result in enumerate(results):
        expected = example[f"out_{index}"]
        assert result.shape == expected.shape, (result.shape, expected.shape)
        worst = max(worst, float(np.abs(result - expected).max()))
    print("difference", name, worst, flush=True)
