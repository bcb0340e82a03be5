"""The C library keeps what is freed, unless its user said otherwise."""

from __future__ import annotations

import ctypes

import pytest

from fluidlite.values import memory


def test_the_c_library_is_left_alone_where_the_user_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "keep_freed_memory", memory.keep_freed_memory.__wrapped__)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not memory.keep_freed_memory()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000")
    assert not memory.keep_freed_memory()


def test_servers_share_one_arena_unless_the_user_set_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "share_one_arena", memory.share_one_arena.__wrapped__)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not memory.share_one_arena()
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    if hasattr(ctypes.CDLL(None), "mallopt"):
        assert memory.share_one_arena()
