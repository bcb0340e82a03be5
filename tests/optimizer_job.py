"""One optimizer op on a parameter of any kind, for the tests of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.core.ir import Operator, Program, Variable
from fluidlite.ops import registry
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import FromArray
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

OPTIMIZERS = sorted(d.type for d in registry.all_defs() if d.is_optimizer and d.type != "dgc_momentum")
WHOLE_NORM = ("dpsgd", "lamb", "lars_momentum")
ELEMENTWISE = [name for name in OPTIMIZERS if name not in WHOLE_NORM]
#: every row of a dense parameter moves, also those that a SelectedRows gradient does not name
EVERY_ROW = ("adam", "momentum", "rmsprop", *WHOLE_NORM)
ATTRS: dict[str, dict[str, Any]] = {
    "momentum": {"mu": 0.9},
    "lars_momentum": {"mu": 0.9},
    "lamb": {"weight_decay": 0.01},
    "dpsgd": {"sigma": 0.0},
    "rmsprop": {"epsilon": 1e-6, "momentum": 0.5},
    "ftrl": {"l1": 0.1, "l2": 0.2},
    "proximal_gd": {"l1": 0.1, "l2": 0.2},
    "proximal_adagrad": {"l1": 0.1, "l2": 0.2},
}


class Job:
    """One optimizer op on variables of a scope. The accumulators are made as the record declares them."""

    def __init__(
        self,
        op_type: str,
        param: Any,
        attrs: Mapping[str, Any] | None = None,
        *,
        rate: float = 0.1,
        fills: Mapping[str, float] | None = None,
        **values: Any,
    ) -> None:
        self.op_def = registry.get(op_type)
        self.op = Operator(op_type, attrs=registry.attrs_for(self.op_def, ATTRS.get(op_type, {}) | dict(attrs or {})))
        self.scope, self.program = Scope(), Program()
        self._add("Param", param)
        self._add("LearningRate", np.array([rate], self.dtype))
        constants = registry.attr_values(self.op_def, self.op)
        for accumulator in self.op_def.accumulators:
            fill = constants[accumulator.fill] if isinstance(accumulator.fill, str) else accumulator.fill
            fill = (fills or {}).get(accumulator.name, fill)
            self._add(accumulator.input, self._state(accumulator.name, fill, accumulator.whole))
        for name, value in values.items():
            self._add(name, value)
        self._add("Grad", None)
        for output, source in self.op_def.inplace.items():
            self.op.outputs[output] = list(self.op.inputs[source])
        self.program.root.ops.append(self.op)
        self.plan = Plan(self.program, None)

    @property
    def dtype(self) -> Any:
        param = self.scope.get("Param")
        return param.value.dtype if isinstance(param, SelectedRows) else param.dtype

    def step(self, grad: Any) -> Job:
        self.scope.set("Grad", grad)
        self.plan.run(self.scope, {})
        return self

    def value(self, name: str = "Param", ids: Any = None) -> Any:
        """A value as an array; of a table the rows ``ids``."""
        value = self.scope.get(name)
        if isinstance(value, SparseTable):
            return value.lookup(np.asarray(ids))
        if isinstance(value, TableColumn) and value.table is None:
            return np.full((len(ids), value.width), value.fill)
        if isinstance(value, TableColumn):
            return value.table.read(value.table.positions(np.asarray(ids), create=True), value)
        return value if ids is None or value.shape == (1,) else value[ids]

    @property
    def state_names(self) -> list[str]:
        return [accumulator.input for accumulator in self.op_def.accumulators]

    def _state(self, name: str, fill: float, whole: bool) -> Any:
        param = self.scope.get("Param")
        if whole:
            return np.full(1, fill, self.dtype)
        if isinstance(param, SparseTable):
            return TableColumn(name, param.width, fill, param.dtype)
        return np.full(param.shape, fill, self.dtype)

    def _add(self, name: str, value: Any) -> None:
        self.program.root.vars[name] = Variable(name, persistable=True)
        self.op.inputs[name] = [name]
        if value is not None:
            self.scope.set(name, value)


def rows(ids: Any, value: Any, height: int = 0) -> SelectedRows:
    return SelectedRows(np.asarray(ids, np.int64), np.asarray(value, np.float64), height)


def table_of(param: Any) -> SparseTable:
    """A table whose rows start as those of ``param``."""
    return SparseTable("emb", param.shape[1], param.dtype, FromArray(param.copy()))


def assert_same(one: Job, other: Job, ids: Any) -> None:
    for name in ("Param", *one.state_names):
        np.testing.assert_allclose(one.value(name, ids), other.value(name, ids), rtol=1e-12, atol=0, err_msg=name)
