"""Run by a Python that has paddlepaddle 3: ``FOLDER NAME FORM...``; says how far each form of a model is from its example."""

import sys
from pathlib import Path

import numpy as np
from paddle import inference


def difference(files, example):
    config = inference.Config(*files)
    config.disable_gpu()
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    for name in predictor.get_input_names():
        handle = predictor.get_input_handle(name)
        handle.copy_from_cpu(example[f"in_{name}"])
        if f"lod_{name}" in example:
            handle.set_lod(example[f"lod_{name}"].tolist())
    predictor.run()
    names = predictor.get_output_names()
    assert len(names) == sum(key.startswith("out_") for key in example)
    results = [predictor.get_output_handle(name).copy_to_cpu() for name in names]
    worst = 0.0
    for index, result in enumerate(results):
        expected = example[f"out_{index}"]
        assert result.shape == expected.shape, (result.shape, expected.shape)
        assert result.dtype == expected.dtype, (result.dtype, expected.dtype)
        worst = max(worst, float(np.abs(result - expected).max()))
    return worst


folder = Path(sys.argv[1])
for argument in sys.argv[2:]:
    path, _, form = argument.partition("=")
    example = dict(np.load(folder / f"{Path(path).name}.npz"))
    files = [path] if form == "folder" else [f"{path}.pdmodel", f"{path}.pdiparams"]
    print("difference", Path(path).name, form, difference(files, example), flush=True)
