"""Rows at half their width: how far they are rounded, what is kept, what is refused, and that both transports agree."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import Gradient, Identity, PullReply, Push, RowRequest, StepHeader
from fluidlite.protocol.narrow import BFLOAT16, narrow, widen
from fluidlite.protocol.packet import Payload
from fluidlite.rpc.wire import messages_of, transfers_of
from tests.fake_cluster import TRANSPORTS, FakeCluster

WHO = Identity("job", 0, 1)
IDS = np.array([3, -1, 8], np.int64)
#: dtype -> (bits of the significand, exponent of the least normal number, greatest finite number)
FORMATS = {"float16": (11, -14, 65504.0), "bfloat16": (8, -126, 2.0**127 * (2 - 2.0**-7))}
DTYPES = ["float32", "float64"]


def rows_of(dtype: str, largest: float) -> st.SearchStrategy[Array]:
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(-largest, largest, width=width)  # type: ignore[call-overload]
    return hnp.arrays(dtype, st.tuples(st.integers(0, 5), st.integers(1, 4)), elements=elements)


@given(st.data())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_the_error_is_within_the_bounds(wire_dtype: str, dtype: str, data: st.DataObject) -> None:
    bits, least, largest = FORMATS[wire_dtype]
    rows = data.draw(rows_of(dtype, largest))
    back = widen(narrow(rows, wire_dtype, "rows"), dtype)
    assert (back.dtype, back.shape) == (rows.dtype, rows.shape)
    exact, found = rows.astype(np.float64), back.astype(np.float64)
    bound = np.maximum(np.abs(exact) * 2.0**-bits, 2.0 ** (least - bits))
    assert (np.abs(found - exact) <= bound).all()


@given(st.data())
@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_what_was_rounded_once_stays(wire_dtype: str, data: st.DataObject) -> None:
    rows = data.draw(rows_of("float32", FORMATS[wire_dtype][2]))
    once = widen(narrow(rows, wire_dtype, "rows"), "float32")
    again = widen(narrow(once, wire_dtype, "rows"), "float32")
    np.testing.assert_array_equal(once.view(np.uint32), again.view(np.uint32))


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    bits = np.array([[0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x3F80_7FFF, 0xBF81_8000]], np.uint32)
    rounded = narrow(bits.view(np.float32), "bfloat16", "rows").view(np.uint16)
    np.testing.assert_array_equal(rounded, [[0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF82]])


@pytest.mark.parametrize("wire_dtype", FORMATS)
def test_infinities_and_nan_stay(wire_dtype: str) -> None:
    rows = np.array([[np.inf, -np.inf, np.nan, -0.0]], np.float32)
    np.testing.assert_array_equal(widen(narrow(rows, wire_dtype, "rows"), "float32"), rows)
    odd_nans = np.array([[0x7F80_0001, 0x7FFF_FFFF, 0xFF80_0001]], np.uint32).view(np.float32)
    assert np.isnan(widen(narrow(odd_nans, wire_dtype, "rows"), "float32")).all()


@pytest.mark.parametrize(
    ("wire_dtype", "dtype", "fits", "too_large"),
    [
        ("float16", "float32", 65519.0, 65520.0),
        ("float16", "float64", 65519.9, -1e300),
        ("bfloat16", "float32", 3.38e38, 3.4e38),
        ("bfloat16", "float64", 3.38e38, 1e39),
    ],
)
def test_a_number_that_would_become_infinite_is_refused(
    wire_dtype: str, dtype: str, fits: float, too_large: float
) -> None:
    rows = np.zeros((3, 2), dtype)
    rows[2, 1] = fits
    assert np.isfinite(widen(narrow(rows, wire_dtype, "rows"), dtype)).all()
    rows[2, 1] = too_large
    rows[0, 0] = np.inf
    with pytest.raises(
        RequestRefusedError, match=re.escape(f"rows of 'emb': {too_large:g} at [2, 1] is too large for {wire_dtype}")
    ):
        narrow(rows, wire_dtype, "rows of 'emb'")


@pytest.mark.parametrize("wire_dtype", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_gradients_travel_at_half_the_width_or_less(wire_dtype: str, dtype: str) -> None:
    rows = np.linspace(-3, 3, 3 * 16, dtype=dtype).reshape(3, 16)
    expected = widen(narrow(rows, wire_dtype, "rows"), dtype)
    request = RowRequest("e", "emb", IDS, 16, dtype, wire_dtype=wire_dtype)
    (transfer,) = transfers_of(messages_of(encode.encode_pull(WHO, [request])))
    _, (received,) = encode.decode_pull(*transfer, "e")
    assert isinstance(received, RowRequest)
    assert received.wire_dtype == wire_dtype
    (reply,) = messages_of(encode.encode_pull_reply(PullReply(0, (rows,)), [received]))
    assert len(reply) < rows.size * 2 + 60
    (value,) = encode.decode_pull_reply(*next(transfers_of([reply]))).values
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, expected, strict=True)

    gradients = [
        Gradient("e", "emb@GRAD", rows, IDS, 9, wire_dtype),
        Gradient("e", "w@GRAD", rows, wire_dtype=wire_dtype),
    ]
    (push,) = messages_of(encode.encode_push(Push(StepHeader(WHO, 0, 0, 0, 2), gradients, [])))
    whole = encode.OpenStep("e").add(*next(transfers_of([push])))
    assert isinstance(whole, Push)
    np.testing.assert_array_equal(whole.gradients[0].value, expected, strict=True)
    np.testing.assert_array_equal(whole.gradients[1].value, rows, strict=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_both_transports_round_alike(transport: str) -> None:
    with FakeCluster(transport) as cluster:
        port = cluster.port()
        gradient = np.array([[1 / 3, 1e-3], [7.7, -2 / 3], [1.0, 0.1]])
        port.stage(Gradient(cluster.endpoint, "emb", gradient, IDS, 0, "bfloat16"))
        port.commit([cluster.endpoint])
        on_server = np.array([cluster.store.rows[id] for id in IDS.tolist()])
        np.testing.assert_array_equal(on_server, -widen(narrow(gradient, "bfloat16", "g"), "float64"))
        (rows,) = port.pull([RowRequest(cluster.endpoint, "emb", IDS, 2, "float64", wire_dtype="float16")])
        np.testing.assert_array_equal(rows, widen(narrow(on_server, "float16", "r"), "float64"), strict=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rows_too_large_for_the_wire_are_refused_and_the_job_goes_on(transport: str) -> None:
    with FakeCluster(transport) as cluster:
        port = cluster.port()
        large = Gradient(cluster.endpoint, "emb", np.full((3, 2), 1e6), IDS, 0, "float16")
        port.stage(large)
        with pytest.raises(RequestRefusedError, match=r"gradient 'emb': 1e\+06 at \[0, 0\] is too large for float16"):
            port.commit([cluster.endpoint])
        assert cluster.store.version == 0
        port.stage(Gradient(cluster.endpoint, "emb", np.full((3, 2), 1e6), IDS))
        port.commit([cluster.endpoint])
        with pytest.raises(RequestRefusedError, match=r"rows of 'emb': -1e\+06"):
            port.pull([RowRequest(cluster.endpoint, "emb", IDS, 2, "float64", wire_dtype="float16")])
        (rows,) = port.pull([RowRequest(cluster.endpoint, "emb", IDS, 2, "float64", wire_dtype="bfloat16")])
        np.testing.assert_allclose(rows, -1e6, rtol=2**-8)


@pytest.mark.parametrize(
    "value",
    [
        pb.Value(array=pb.Array(dtype=22, shape=[4]), dtype=3),
        pb.Value(array=pb.Array(dtype=22, shape=[4]), dtype=99),
        pb.Value(array=pb.Array(dtype=5, shape=[2]), dtype=6),
    ],
)
def test_what_cannot_be_widened_is_refused(value: pb.Value) -> None:
    with pytest.raises(RequestRefusedError, match="in place of dtype number"):
        Payload(bytes(8)).take_value(value)


def test_a_wire_dtype_that_is_none_is_refused() -> None:
    header = pb.PullRequestHeader()
    header.items.add().rows.CopyFrom(
        pb.RowRequest(table="emb", ids=pb.Array(dtype=3, shape=[0]), dtype=5, wire_dtype=3)
    )
    with pytest.raises(RequestRefusedError, match="rows cannot travel as int64, only as float16 or bfloat16"):
        encode.decode_pull(header.SerializeToString(), Payload(b""), "e")


def test_bits_of_bfloat16_are_no_numbers() -> None:
    assert Payload(bytes(8)).take(pb.Array(dtype=22, shape=[4])).dtype == BFLOAT16
