"""The shipped protobuf code says what proto/*.proto say. If not: ``python proto/generate.py``."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from tests.shared_data import REPO

PROTOS = sorted((REPO / "proto").glob("*.proto"))
GENERATED = REPO / "fluidlite" / "proto_gen"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proto_generate", REPO / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools.protoc")
    path = tmp_path / "all.bin"
    _generator().descriptor_set(PROTOS, path)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    assert [Path(file.name).stem for file in compiled.file] == [proto.stem for proto in PROTOS]
    for file in compiled.file:
        module = importlib.import_module(f"fluidlite.proto_gen.{Path(file.name).stem}_pb2")
        shipped = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        _drop_json_names(file.message_type)
        _drop_json_names(shipped.message_type)
        assert shipped == file, f"fluidlite/proto_gen is stale for {file.name}: run python proto/generate.py"


def _drop_json_names(messages: object) -> None:
    """Compilers differ in whether they spell them out."""
    for message in messages:  # type: ignore[attr-defined]
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)


def test_every_generated_file_has_its_proto() -> None:
    stems = {path.name.removesuffix("_pb2.py") for path in GENERATED.glob("*_pb2.py")}
    assert stems == {proto.stem for proto in PROTOS}


@pytest.mark.parametrize("proto", [proto.stem for proto in PROTOS])
def test_code_runs_on_every_supported_protobuf(proto: str) -> None:
    code = (GENERATED / f"{proto}_pb2.py").read_text(encoding="utf-8")
    assert "runtime_version" not in code


def test_the_names_of_paddle_stay_free() -> None:
    importlib.import_module("fluidlite.proto_gen.framework_pb2")
    pool = descriptor_pool.Default()
    for name in ("framework.proto", "pserver.proto"):
        with pytest.raises(KeyError):
            pool.FindFileByName(name)  # type: ignore[no-untyped-call,unused-ignore]
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("paddle.framework.proto.ProgramDesc")  # type: ignore[no-untyped-call,unused-ignore]
