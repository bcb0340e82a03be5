"""A library that was cut off is told before the loader maps it, which would end the process by SIGBUS."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite
from fluidlite.kernels.elf import check_whole

PACKAGE = Path(fluidlite.__file__).parent
LIBRARY = PACKAGE / "kernels" / "_c.abi3.so"
needs_library = pytest.mark.skipif(
    sys.platform != "linux" or not LIBRARY.exists(), reason="the C kernels are not built as an ELF library"
)


def elf(bits: int, order: str, size: int = 128) -> bytes:
    """A library of a header, a segment of 16 bytes behind its table of segments, and one entry of a table of sections."""
    header, entry, section = (64, 56, 64) if bits == 64 else (52, 32, 40)
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2]) + bytes(10)
    at = header + entry
    tables = (header, at + 16, 0, header, entry, 1, section, 1, 0)
    if bits == 64:
        rest = struct.pack(order + "HHIQQQIHHHHHH", 3, 62, 1, 0, *tables)
        segment = struct.pack(order + "IIQQQQQQ", 1, 5, at, 0, 0, 16, 16, 4096)
    else:
        rest = struct.pack(order + "HHIIIIIHHHHHH", 3, 3, 1, 0, *tables)
        segment = struct.pack(order + "IIIIIIII", 1, at, 0, 0, 16, 16, 5, 4096)
    return ident + rest + segment + bytes(16 + section)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_only_whole_files_pass(tmp_path: Path, bits: int, order: str) -> None:
    path, whole = tmp_path / "library.so", elf(bits, order)
    path.write_bytes(whole)
    check_whole(path)
    path.write_bytes(whole + b"more")
    check_whole(path)
    for size in range(6, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ImportError, match=f"library.so is cut off: it has {size} "):
            check_whole(path)


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_an_answer(tmp_path_factory: pytest.TempPathFactory, content: bytes, elf_like: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "any.so"
    path.write_bytes(b"\x7fELF\x02\x01" + content if elf_like else content)
    with pytest.raises(ImportError, match="cut off") if elf_like else contextlib.nullcontext():
        check_whole(path)


def test_a_segment_that_is_promised_and_not_there(tmp_path: Path) -> None:
    whole = bytearray(elf(64, "<"))
    struct.pack_into("<Q", whole, 64 + 32, 10**6)
    path = tmp_path / "library.so"
    path.write_bytes(whole)
    with pytest.raises(ImportError, match="build or install it again"):
        check_whole(path)
    path.write_bytes(whole[:32] + bytes([255]) * 8 + whole[40:])
    with pytest.raises(ImportError, match="cut off: it has"):
        check_whole(path)


@needs_library
@settings(max_examples=5, deadline=None)
@given(share=st.floats(0.01, 0.99))
def test_the_built_library_is_whole_and_no_part_of_it_is(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    check_whole(LIBRARY)
    content = LIBRARY.read_bytes()
    part = tmp_path_factory.getbasetemp() / "part.so"
    part.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ImportError, match="cut off"):
        check_whole(part)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package whose library is cut off in the middle."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(PACKAGE, folder / "fluidlite", ignore=shutil.ignore_patterns("__pycache__"))
    library = folder / "fluidlite" / "kernels" / "_c.abi3.so"
    library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    return folder


def python(folder: Path, kernels: str, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder), "FLUIDLITE_KERNELS": kernels}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)


@needs_library
def test_a_library_that_was_cut_off_is_told_by_doctor(damaged: Path) -> None:
    done = python(damaged, "auto", "-m", "fluidlite", "doctor")
    assert done.returncode == 0, done
    assert "numpy (the extension cannot be imported: " in done.stdout
    assert "_c.abi3.so is cut off" in done.stdout
    done = python(damaged, "c", "-m", "fluidlite", "doctor")
    assert done.returncode == 1, done
    assert "KernelError: FLUIDLITE_KERNELS=c, but the extension cannot be imported" in done.stdout
    assert not done.stderr


@needs_library
def test_a_library_that_was_cut_off_is_an_error_where_it_is_wanted(damaged: Path) -> None:
    done = python(damaged, "c", "-c", "import fluidlite; fluidlite.Executor()")
    assert done.returncode == 1, done
    assert "fluidlite.errors.KernelError: FLUIDLITE_KERNELS=c, but the extension" in done.stderr.splitlines()[-1]
    assert python(damaged, "auto", "-c", "import fluidlite; fluidlite.Executor()").returncode == 0
