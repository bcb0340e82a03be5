"""Cutting parameters and spreading the slices: Fluid's rules, and balance where they leave none."""

from __future__ import annotations

import itertools
import subprocess
import sys
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.transpiler.placement import HashName, RoundRobin, loads, place, slice_rows
from tests.shared_data import golden_json, golden_names, needs_golden

MODELS = {
    "wide layers": [(4096, 1024), (1024,), (1024, 1024), (1024,), (1024, 1), (1,)],
    "many small layers": [shape for _ in range(60) for shape in ((90,), (90, 90))],
    "growing layers": [shape for width in range(8, 400, 8) for shape in ((width,), (width, width))],
    "embeddings": [(200_000, 16), (50_000, 16), (1_000_000, 8), (5000, 4), (16, 1), (1,)],
    "convolutions": [(width, width, 3, 3) for width in (16, 32, 64, 64, 128, 128, 256, 256, 512, 512)],
}


def spread(shapes: list[tuple[int, ...]], servers: int, dispatcher: Any, block: int = 8192) -> tuple[Any, list[int]]:
    """(server of each slice, bytes per server) of float32 parameters."""
    cuts = [slice_rows(shape, servers, block) for shape in shapes]
    names = [f"p{i}.block{k}" for i, cut in enumerate(cuts) for k in range(len(cut))]
    sizes = [4 * rows * prod(shape[1:]) for shape, cut in zip(shapes, cuts, strict=True) for _, rows in cut]
    placed = place(names, sizes, servers, dispatcher, slack=4 * block)
    return placed, loads(placed, sizes, servers)


@pytest.mark.parametrize(
    ("shape", "servers", "block", "rows"),
    [
        ((32, 1000), 2, 8192, [16, 16]),
        ((1000, 16), 2, 8192, [1000]),
        ((1000, 1), 2, 8192, [1000]),
        ((10000, 16), 2, 8192, [5000, 5000]),
        ((20000,), 2, 8192, [10000, 10000]),
        ((7,), 3, 1, [3, 3, 1]),
        ((1,), 5, 1, [1]),
        ((10, 3), 4, 1, [3, 3, 3, 1]),
        ((5, 8), 2, 1, [3, 2]),
        ((2, 1000), 5, 1, [1, 1]),
        ((4, 2, 3), 3, 1, [2, 2]),
    ],
)
def test_slices_follow_fluid(shape: tuple[int, ...], servers: int, block: int, rows: list[int]) -> None:
    cuts = slice_rows(shape, servers, block)
    assert [count for _, count in cuts] == rows
    assert [first for first, _ in cuts] == [0, *itertools.accumulate(rows)][:-1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 9), st.integers(1, 100))
def test_slices_cover_every_row_once(shape: list[int], servers: int, block: int) -> None:
    cuts = slice_rows(shape, servers, block)
    assert [row for first, rows in cuts for row in range(first, first + rows)] == list(range(shape[0]))
    assert len(cuts) <= servers
    assert all(rows > 0 for _, rows in cuts)


def test_B033_small_blocks_are_accepted() -> None:
    assert len(slice_rows((8, 16), 2, 64)) == 2


def test_round_robin_is_that_of_fluid() -> None:
    shapes: list[tuple[int, ...]] = [(1000, 16), (1,), (1000, 1), (1000,), (32, 1000)]
    placed, _ = spread(shapes, 2, RoundRobin)
    assert placed == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("servers", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("dispatcher", [RoundRobin, HashName])
@pytest.mark.parametrize("model", MODELS)
def test_P05_servers_hold_about_the_same(model: str, dispatcher: Any, servers: int) -> None:
    _, load = spread(MODELS[model], servers, dispatcher)
    assert max(load) < 1.15 * sum(load) / servers


def test_a_small_model_keeps_the_order_of_its_dispatcher() -> None:
    assert spread([(13, 1), (1,)], 2, RoundRobin)[0] == [0, 1]
    assert spread([(13, 1), (1,)], 4, RoundRobin)[0] == [0, 1]


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(1, 8), st.sampled_from([RoundRobin, HashName])
)
def test_placing_by_size_never_makes_it_worse(sizes: list[int], servers: int, dispatcher: Any) -> None:
    names = [f"p{index}" for index in range(len(sizes))]
    wanted = dispatcher.prefer(names, servers)
    placed = place(names, sizes, servers, dispatcher, slack=0)
    assert max(loads(placed, sizes, servers)) <= max(loads(wanted, sizes, servers))


def test_hash_name_does_not_depend_on_the_process() -> None:
    code = "from fluidlite.transpiler import HashName; print(HashName.prefer([f'p{i}' for i in range(50)], 7))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert outputs == {f"{HashName.prefer([f'p{i}' for i in range(50)], 7)}\n"}


def _placed_by_fluid(program: Any) -> dict[str, list[str]]:
    """Parameter -> endpoints of its slices, off a trainer program that Fluid made."""
    found = {}
    for op in program["blocks"][0]["ops"]:
        attrs = op.get("attrs", {})
        if op["type"] == "recv":
            names = op["out"]["Out"]
            found[names[0].removesuffix(".block0")] = attrs["epmap"]
        elif op["type"] == "distributed_lookup_table":
            found[op["in"]["W"][0]] = attrs["endpoints"]
    return found


def _transpiled_by_fluid() -> list[str]:
    names = golden_names("programs")
    return [name for name in names if "sync" in golden_json("programs", f"{name}.json").get("transpiled", {})]


@needs_golden
@pytest.mark.parametrize("name", _transpiled_by_fluid())
def test_golden_placement(name: str) -> None:
    case = golden_json("programs", f"{name}.json")
    expected = _placed_by_fluid(case["transpiled"]["sync"]["trainer0"]["main"])
    root = case["main"]["blocks"][0]
    shapes = {var["n"]: tuple(var["s"]) for var in root["vars"] if "s" in var}
    params = [op["in"]["Param"][0] for op in root["ops"] if "Param" in op.get("in", {})]
    placed, _ = spread([shapes[param] for param in params], 2, RoundRobin)
    servers = iter(f"127.0.0.1:{6174 + server}" for server in placed)
    found = {param: [next(servers) for _ in slice_rows(shapes[param], 2, 8192)] for param in params}
    assert found == expected
