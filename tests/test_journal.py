"""The log of a server: what is written comes back, and damage is noticed."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import CorruptFileError, ServerFailedError, UnwritableFileError
from fluidlite.protocol.events import Arrived, Assigned, Came, Completed, Decided, Event, Lost, NewJob, Settled, Stepped
from fluidlite.protocol.messages import Gradient, Identity, StepHeader
from fluidlite.pserver.journal import Journal, read_segment, segment_path, segments
from fluidlite.values.selected_rows import SelectedRows

WHO = Identity("job", 3, 17)
WHOSE = {"server": 0, "servers": 1, "history": 5}


def step(sequence: int = 4, rows: int = 3, decided: bool = True) -> Stepped:
    dense = Gradient("", "w@GRAD", np.arange(6, dtype=np.float32).reshape(2, 3))
    sparse = Gradient("", "emb@GRAD", np.ones((rows, 2), np.float64), np.arange(rows) - 1, 10)
    return Stepped(StepHeader(WHO, sequence, sequence, 7, 2, 0.5), (dense, sparse), decided)


EVENTS: list[Event] = [
    Came(WHO),
    step(decided=False),
    Decided(3, 4, apply=True),
    Arrived(3),
    Assigned(WHO, "w", np.array([1.5, -2.0])),
    Assigned(WHO, "emb", SelectedRows(np.array([-(2**63), 2**63 - 1]), np.ones((2, 2), np.float32), 4)),
    step(5, rows=0),
    Lost(0),
    Completed(3),
    NewJob(),
    Settled(),
]


def write(folder: Path, events: list[Event], number: int = 0) -> None:
    journal = Journal(folder, number, WHOSE)
    for event in events:
        last = journal.append(event)
    journal.wait(last)
    journal.close()


def read(folder: Path, number: int = 0, last: bool = True) -> list[Event]:
    head, events = read_segment(folder, number, last=last)
    assert {key: head[key] for key in WHOSE} == WHOSE
    return list(events)


def same(one: Event, other: Event) -> None:
    assert type(one) is type(other)
    if isinstance(one, Stepped) and isinstance(other, Stepped):
        assert (one.header, one.decided) == (other.header, other.decided)
        for mine, theirs in zip(one.gradients, other.gradients, strict=True):
            assert (mine.name, mine.height) == (theirs.name, theirs.height)
            np.testing.assert_array_equal(mine.value, theirs.value, strict=True)
            assert (mine.rows is None) == (theirs.rows is None)
            if mine.rows is not None and theirs.rows is not None:
                np.testing.assert_array_equal(mine.rows, theirs.rows, strict=True)
    elif isinstance(one, Assigned) and isinstance(other, Assigned):
        assert (one.identity, one.name) == (other.identity, other.name)
        if isinstance(one.value, SelectedRows) and isinstance(other.value, SelectedRows):
            np.testing.assert_array_equal(one.value.rows, other.value.rows)
            np.testing.assert_array_equal(one.value.value, other.value.value, strict=True)
        else:
            np.testing.assert_array_equal(one.value, other.value, strict=True)  # type: ignore[call-overload]
    else:
        assert one == other


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write(tmp_path, EVENTS)
    for one, other in zip(EVENTS, read(tmp_path), strict=True):
        same(one, other)


def test_an_opened_segment_goes_on_and_another_one_begins(tmp_path: Path) -> None:
    write(tmp_path, EVENTS[:2])
    write(tmp_path, EVENTS[2:4])
    assert len(read(tmp_path)) == 4
    journal = Journal(tmp_path, 0, WHOSE)
    journal.append(Lost(1))
    assert journal.rotate() == 1
    journal.wait(journal.append(Lost(2)))
    journal.close()
    assert segments(tmp_path) == [0, 1]
    assert read(tmp_path, 0, last=False)[-1] == Lost(1)
    assert read(tmp_path, 1) == [Lost(2)]


@given(st.data())
def test_a_file_cut_anywhere_gives_the_events_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    write(folder, EVENTS)
    path = segment_path(folder, 0)
    whole = path.read_bytes()
    head = len(whole) - sum(_sizes(folder))
    cut = data.draw(st.integers(head, len(whole) - 1))
    path.write_bytes(whole[:cut])
    before = read(folder)
    ends = np.cumsum([head, *_sizes_of(whole, head)])
    assert len(before) == int(np.searchsorted(ends, cut, side="right")) - 1
    for one, other in zip(EVENTS, before, strict=False):
        same(one, other)
    write(folder, [Lost(9)])
    assert read(folder)[-1] == Lost(9), "the segment goes on behind its last whole entry"


@given(st.data())
def test_a_flipped_byte_is_never_believed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("log")
    write(folder, EVENTS)
    path = segment_path(folder, 0)
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        events = read(folder)
    except CorruptFileError:
        return
    assert len(events) == len(EVENTS) - 1, "only the last entry can be taken for an unfinished one"


def test_of_a_segment_that_is_not_the_last_nothing_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, EVENTS)
    path = segment_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="damaged"):
        read(tmp_path, last=False)


def test_zeros_at_the_end_are_an_unfinished_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, EVENTS[:1])
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(bytes(100))
    with caplog.at_level(logging.WARNING, logger="fluidlite"):
        assert read(tmp_path) == EVENTS[:1]
    assert "unfinished entry of 100 bytes" in caplog.text


def test_a_huge_declared_size_allocates_nothing(tmp_path: Path) -> None:
    write(tmp_path, EVENTS[:1])
    path = segment_path(tmp_path, 0)
    import struct
    import zlib

    sizes = struct.pack("<IQ", 10, 1 << 60)
    with path.open("ab") as file:
        file.write(sizes + struct.pack("<II", zlib.crc32(sizes), 0) + b"x" * 50)
    assert read(tmp_path) == EVENTS[:1]


def test_another_file_and_an_unusable_folder(tmp_path: Path) -> None:
    segment_path(tmp_path, 0).write_bytes(b"something else")
    with pytest.raises(CorruptFileError, match="not a log"):
        read(tmp_path)
    with pytest.raises(UnwritableFileError, match="cannot be written"):
        Journal(segment_path(tmp_path, 0) / "below", 0, WHOSE)


def test_a_full_disk_fails_whoever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 0, WHOSE)
    journal.wait(journal.append(Lost(1)))

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.writev", full)
    number = journal.append(Lost(2))
    with pytest.raises(ServerFailedError, match="No space left"):
        journal.wait(number)
    monkeypatch.undo()
    with pytest.raises(ServerFailedError, match="No space left"):
        journal.wait(journal.append(Lost(3)))
    journal.close()
    assert read(tmp_path) == [Lost(1)], "after a failure nothing more is written: it would not follow what is there"


def _sizes(folder: Path) -> list[int]:
    whole = segment_path(folder, 0).read_bytes()
    return _sizes_of(whole, _first(whole))


def _first(whole: bytes) -> int:
    header, payload = int.from_bytes(whole[8:12], "little"), int.from_bytes(whole[12:20], "little")
    return 8 + 20 + header + payload


def _sizes_of(whole: bytes, start: int) -> list[int]:
    sizes = []
    while start < len(whole):
        size = (
            20
            + int.from_bytes(whole[start : start + 4], "little")
            + int.from_bytes(whole[start + 4 : start + 12], "little")
        )
        sizes.append(size)
        start += size
    return sizes
