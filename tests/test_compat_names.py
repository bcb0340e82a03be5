"""Every name that public scripts for Fluid use is there, with the arguments that Fluid 1.8.5 gives it, or is in the table of
those that are left out.

``compat_names.json`` has the names of ``../shared/spec/api_rank.tsv`` and ``api_unlock_order.tsv`` with their parameters
("name" or "name=default"), as the real package tells them; null where it is no Python function or class of 1.8.5.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
from pathlib import Path
from types import new_class
from typing import Any, Final

import pytest

from fluidlite.compat import left_out
from fluidlite.compat.left_out import LEFT_OUT, MODULES, LeftOut
from fluidlite.compat.run import SITE
from fluidlite.errors import NotSupported
from tests.shared_data import needs_shared, shared

NAMES: Final[dict[str, list[str] | None]] = json.loads(
    Path(__file__).with_name("compat_names.json").read_text(encoding="utf-8")
)
#: how the lists write a place -> where it is
PLACES: Final = {
    "fleet(ps.distribute_transpiler)": "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.fleet",
    "fleet(ps.pslib)._role_maker": "paddle.fluid.incubate.fleet.base.role_maker.RoleMakerBase",
    "fleet(ps.pslib)": "paddle.fluid.incubate.fleet.parameter_server.pslib.fleet",
    "role_maker": "paddle.fluid.incubate.fleet.base.role_maker",
    "fluid": "paddle.fluid",
}
#: what hangs on an object that a process of a job makes
OF_A_JOB: Final = {"fleet(ps.pslib)._role_maker._node_type_comm.Allreduce"}
#: parameters that differ from Fluid's: names of arguments that must not be given by name, or defaults that are equal
DIFFERENT: Final = {
    "fluid.Variable": "made by blocks; no script calls it",
    "fluid.layers.softshrink": "None and 0.5 are the same",
}


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))


def resolved(name: str) -> Any:
    """What a script gets by the name, imported where it must be."""
    place = next((place for place in PLACES if name == place or name.startswith(f"{place}.")), None)
    whole = name if place is None else PLACES[place] + name[len(place) :]
    head, *rest = whole.split(".")
    found, path = importlib.import_module(head), head
    for part in rest:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(path)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_is_there(name: str) -> None:
    if name in OF_A_JOB:
        name = name.rpartition(".")[0]
    found = resolved(name)
    if isinstance(found, LeftOut):
        name = name.replace("fleet(ps.pslib)", PLACES["fleet(ps.pslib)"].removeprefix("paddle."))
        assert (
            name in LEFT_OUT
            or name in MODULES
            or any(name.removeprefix("paddle.").startswith(f"{module}.") for module in MODULES)
        )
        with pytest.raises(NotSupported, match=f"^{re.escape(name)} is not supported"):
            found()


@pytest.mark.parametrize("name", [name for name, parameters in NAMES.items() if parameters and name not in DIFFERENT])
def test_takes_what_fluid_takes(name: str) -> None:
    found = resolved(name)
    if isinstance(found, LeftOut):
        pytest.skip("left out")
    given = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in inspect.signature(found).parameters.values()
    ]
    wanted = [text for text in NAMES[name] or () if not text.startswith("*")]
    assert given[: len(wanted)] == wanted or compared(given, wanted)


def compared(given: list[str], wanted: list[str]) -> bool:
    """Whether each of Fluid's parameters is at its place, with an equal default; here more may have one."""
    for mine, theirs in zip(given, wanted, strict=False):
        (name, _, default), (their_name, _, their_default) = mine.partition("="), theirs.partition("=")
        if name != their_name or (their_default and number(default) != number(their_default)):
            return False
    return len(given) >= len(wanted)


def number(text: str) -> object:
    """Numbers as such, so that 1 is 1.0; kinds of variables by their names."""
    try:
        return float(text)
    except ValueError:
        return (
            re.sub(r"<VarKind\.(\w+): \d+>|VarType\.(\w+)", r"\1\2", text)
            .replace("[", "(")
            .replace(",)", ")")
            .replace("]", ")")
        )


@needs_shared
@pytest.mark.parametrize("table", ["api_rank.tsv", "api_unlock_order.tsv"])
def test_the_list_has_all_names_of(table: str) -> None:
    with shared("spec", table).open(encoding="utf-8", newline="") as stream:
        names = {row[1] for row in csv.reader(stream, delimiter="\t")} - {"api"}
    assert names <= NAMES.keys()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out_names_say_so(name: str) -> None:
    """The table tells the truth: a script that asks for such a name gets what refuses to be used."""
    module, _, last = name.rpartition(".")
    try:
        importlib.import_module(f"paddle.{module}")
    except ModuleNotFoundError:
        found: Any = left_out.find(module, last)
    else:
        found = resolved(name)
    assert isinstance(found, LeftOut)
    for use in (found, lambda: found.attribute, lambda: new_class("Child", (found,))):
        with pytest.raises(NotSupported, match=re.escape(name)):
            use()
    assert repr(found) == f"<{name}: not supported>"


@pytest.mark.parametrize("name", MODULES)
def test_left_out_modules_can_be_imported(name: str) -> None:
    """A script that imports such a module, or one below it, and never uses it runs; each of its names says so."""
    for module in (name, f"{name}.below"):
        found = importlib.import_module(f"paddle.{module}").anything
        assert isinstance(found, LeftOut)
        assert not isinstance(name, found)  # type: ignore[arg-type]
        with pytest.raises(
            NotSupported, match=re.escape(f"{module}.anything is not supported by fluidlite: {MODULES[name]}")
        ):
            found()
    with pytest.raises(NotSupported, match=r"\._inner is not supported"):
        importlib.import_module(f"paddle.{name}")._inner()


@pytest.mark.parametrize(
    "name",
    [
        "layers.nn.roi_pool",
        "contrib.layers.nn.search_pyramid_hash",
        "contrib.utils.load_persistables_for_increment",
        "param_attr.WeightNormParamAttr",
    ],
)
def test_a_name_is_refused_wherever_fluid_has_it(name: str) -> None:
    with pytest.raises(NotSupported, match=rf"^fluid\.{re.escape(name)} is not supported"):
        resolved(f"fluid.{name}")()


def test_a_module_of_paddle_that_there_is_not_is_no_attribute() -> None:
    assert not hasattr(importlib.import_module("paddle"), "no_such_name")


def test_other_names_are_plain_errors() -> None:
    for module in ("paddle", "paddle.fluid", "paddle.fluid.layers", "paddle.fluid.core", "paddle.fluid.io"):
        with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
            _ = importlib.import_module(module).no_such_name
    assert not hasattr(LeftOut("x", "y"), "__wrapped__")
