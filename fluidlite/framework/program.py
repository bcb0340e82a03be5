"""Program, Block, Operator, Variable as users see them: thin facades over the plain data of `core.ir`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from fluidlite.core import edit, ir, text
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework.dtypes import dtype_name
from fluidlite.framework.state import first_seed, role_attrs, role_guard, state, user_line
from fluidlite.framework.views import OperatorView, ParameterView, VariableView
from fluidlite.inference import pruned, strip_training, tested
from fluidlite.ops import fluid_form, registry
from fluidlite.ops.infer import infer_op

VarOrName: TypeAlias = "Variable | str"
Arguments: TypeAlias = "Mapping[str, VarOrName | Sequence[VarOrName] | None]"


class Variable(VariableView):
    """A variable of a program. Arithmetic and comparison operators append ops (see `fluidlite.layers.math_op`)."""

    if TYPE_CHECKING:  # installed by layers.math_op, == and != among them

        def astype(self, dtype: object) -> Variable: ...
        def __getitem__(self, item: Any) -> Variable: ...  # by layers.indexing
        def __add__(self, other: Any) -> Variable: ...
        def __neg__(self) -> Variable: ...

        __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __add__
        __lt__ = __le__ = __gt__ = __ge__ = __add__

    def __init__(self, block: Block, name: str) -> None:
        self.block = block
        self.name = name
        #: clip of this variable's gradient during append_backward (ErrorClipByValue)
        self.error_clip: Any = None

    @property
    def desc(self) -> ir.Variable:
        """The declaration in the program."""
        found = self.block.desc.vars.get(self.name)
        if found is None:
            raise ProgramError(f"variable {self.name!r} is no longer in block {self.block.idx} of its program")
        return found

    @property
    def program(self) -> Program:
        return self.block.program

    @property
    def persistable(self) -> bool:
        return self.desc.persistable

    @persistable.setter
    def persistable(self, value: bool) -> None:
        self.desc.persistable = value
        self.program.desc.edits += 1

    @property
    def op(self) -> Operator | None:
        """The last op of the block that writes this variable."""
        for op in reversed(self.block.desc.ops):
            if self.name in op.output_arguments():
                return Operator(self.block, op)
        return None

    def _set_error_clip(self, error_clip: Any) -> None:
        self.error_clip = error_clip


class Parameter(Variable, ParameterView):
    """A variable that training changes."""

    @property
    def desc(self) -> ir.Parameter:
        found = super().desc
        assert isinstance(found, ir.Parameter)
        return found


class Operator(OperatorView):
    """An op of a block."""

    def __init__(self, block: Block, desc: ir.Operator) -> None:
        self.block = block
        self.desc = desc

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute, typed by the op's record."""
        spec = registry.attrs_for_one(self.type, name, value)
        edit.set_attr(self.block.program.desc, self.desc, name, spec)

    # the names that scripts for Fluid 1.x use
    _set_attr = set_attr

    @property
    def idx(self) -> int:
        """The op's place in its block. Raises ProgramError when it was removed."""
        for index, op in enumerate(self.block.desc.ops):
            if op is self.desc:
                return index
        raise ProgramError(f"op {self.type!r} is no longer in block {self.block.idx} of its program")

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Read another variable wherever it reads ``old_name``."""
        edit.rename_arguments(self.block.program.desc, self.desc, {old_name: new_name}, outputs=False)

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Write another variable wherever it writes ``old_name``."""
        edit.rename_arguments(self.block.program.desc, self.desc, {old_name: new_name}, inputs=False)


class Block:
    """A list of ops with its variables."""

    def __init__(self, program: Program, idx: int) -> None:
        self.program = program
        self.idx = idx
        self._vars: dict[str, Variable] = {}

    @property
    def desc(self) -> ir.Block:
        return self.program.desc.blocks[self.idx]

    @property
    def parent_idx(self) -> int:
        return self.desc.parent

    @property
    def forward_block_idx(self) -> int:
        return self.desc.forward

    @property
    def ops(self) -> list[Operator]:
        return [Operator(self, op) for op in self.desc.ops]

    @property
    def vars(self) -> dict[str, Variable]:
        return {name: self._facade(name) for name in self.desc.vars}

    def _facade(self, name: str) -> Variable:
        wanted = Parameter if isinstance(self.desc.vars[name], ir.Parameter) else Variable
        found = self._vars.get(name)
        if found is None or type(found) is not wanted:
            found = self._vars[name] = wanted(self, name)
        return found

    def has_var(self, name: str) -> bool:
        return name in self.desc.vars

    def var(self, name: str) -> Variable:
        """A variable of this very block; ProgramError (a ValueError) when it is not there."""
        if name not in self.desc.vars:
            raise ProgramError(f"block {self.idx} has no variable {name!r}")
        return self._facade(name)

    def find_var(self, name: str) -> Variable:
        """A variable of this block or its ancestors; ProgramError when none has it."""
        owner = self.program.desc.owner(name, self.desc)
        if owner is not None:
            return self.program.block(owner.idx)._facade(name)
        raise ProgramError(f"neither block {self.idx} nor its ancestors have a variable {name!r}")

    def all_parameters(self) -> list[Parameter]:
        return list(self.iter_parameters())

    def iter_parameters(self) -> Iterator[Parameter]:
        return (var for var in self.vars.values() if isinstance(var, Parameter))

    def create_var(
        self,
        name: str | None = None,
        dtype: object = "float32",
        shape: Sequence[int | None] | None = None,
        lod_level: int = 0,
        persistable: bool = False,
        stop_gradient: bool = False,
        type: VarKind = VarKind.LOD_TENSOR,
        is_data: bool = False,
        need_check_feed: bool = False,
    ) -> Variable:
        """Declare a variable; without a name it gets ``_generated_var_k``. An existing name is returned unchanged."""
        name = name if name is not None else state.names.generate("_generated_var")
        if name not in self.desc.vars:
            desc = ir.Variable(
                name=name,
                kind=type,
                dtype=dtype_name(dtype) if dtype is not None else "float32",
                shape=None if shape is None else tuple(-1 if dim is None else int(dim) for dim in shape),
                lod_level=lod_level,
                persistable=persistable,
                stop_gradient=stop_gradient,
                is_data=is_data,
                need_check_feed=need_check_feed,
            )
            edit.add_var(self.program.desc, self.desc, desc)
        return self._facade(name)

    def create_parameter(self, desc: ir.Parameter) -> Parameter:
        """Declare a parameter in block 0, or return the one of that name if shape and dtype agree."""
        root = self.program.global_block()
        before = root.desc.vars.get(desc.name)
        if before is None:
            edit.add_var(self.program.desc, root.desc, desc)
        elif not isinstance(before, ir.Parameter) or before.shape != desc.shape or before.dtype != desc.dtype:
            raise ProgramError(
                f"parameter {desc.name!r} {desc.dtype} {list(desc.shape or ())} is already declared as "
                f"{before.dtype} {list(before.shape or ())}"
            )
        found = root._facade(desc.name)
        assert isinstance(found, Parameter)
        return found

    def append_op(
        self,
        type: str,
        inputs: Arguments | None = None,
        outputs: Arguments | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Append an op: arguments are Variables or names, checked against the op's record; infers output shapes."""
        return self.insert_op(len(self.desc.ops), type, inputs, outputs, attrs, stop_gradient)

    def prepend_op(
        self,
        type: str,
        inputs: Arguments | None = None,
        outputs: Arguments | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Like `append_op`, before all other ops of the block."""
        return self.insert_op(0, type, inputs, outputs, attrs)

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Arguments | None = None,
        outputs: Arguments | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Like `append_op`, before the op at position ``index``."""
        origin = user_line()
        try:
            op_def = registry.get(type)
            values = registry.attrs_for(op_def, {**role_attrs(), **(attrs or {})})
            op = ir.Operator(type, _argument_names(inputs), _argument_names(outputs), values, origin)
        except ProgramError as error:
            raise error.__class__(f"{error} ({origin})") from None
        registry.check_arguments(op_def, op)
        program = self.program.desc
        edit.insert_op(program, self.desc, index, op)
        try:
            infer_op(program, self.desc, op)
        except Exception:
            edit.remove_ops(program, self.desc, [op])
            raise
        if stop_gradient:
            for name in op.output_arguments():
                self.find_var(name).stop_gradient = True
        return Operator(self, op)

    def remove_op(self, index: int) -> None:
        """Remove the op at position ``index``."""
        edit.remove_ops(self.program.desc, self.desc, [self.desc.ops[index]])

    # the names that scripts for Fluid 1.x use
    _prepend_op = prepend_op
    _insert_op = insert_op
    _remove_op = remove_op
    _var_recursive = find_var

    def _find_var_recursive(self, name: str) -> Variable | None:
        """`find_var`, but None when there is none."""
        return None if self.program.desc.owner(name, self.desc) is None else self.find_var(name)

    def _rename_var(self, name: str, new_name: str) -> Variable:
        """Give a variable another name, here and in the ops of this block. Variables made before do not follow."""
        return self._facade(edit.rename_var(self.program.desc, self.desc, name, new_name).name)

    def _remove_var(self, name: str) -> None:
        """Forget a variable; no op may still name it."""
        edit.remove_var(self.program.desc, self.desc, name)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The block in the program's text form."""
        return text.show_block(self.desc)

    __str__ = to_string


class Program:
    """A model as a program. ``desc`` is the plain data; `clone`, `to_string`, `serialize` and `parse_from_string`
    copy, print, write and read it."""

    def __init__(self, desc: ir.Program | None = None) -> None:
        self.desc = desc if desc is not None else ir.Program(random_seed=first_seed())
        self._blocks: list[Block] = []
        self._current = 0
        #: what `DistributeTranspiler.transpile` found out (a `transpiler.plan.Distribution`); None before
        self.distribution: Any = None
        #: the loaders that feed the program's runs (`data_loader.Loader`); copies of the program share them
        self.loaders: list[Any] = []

    @property
    def random_seed(self) -> int:
        return self.desc.random_seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if not isinstance(seed, int):
            raise ProgramError(f"random_seed must be an int, not {seed!r}")
        self.desc.random_seed = seed
        self.desc.edits += 1

    def global_seed(self, seed: int = 0) -> None:
        """Set ``random_seed``, here and of every program made from now on."""
        self.random_seed = state.seed = seed

    @property
    def num_blocks(self) -> int:
        return len(self.desc.blocks)

    @property
    def blocks(self) -> list[Block]:
        return [self.block(idx) for idx in range(self.num_blocks)]

    def block(self, index: int) -> Block:
        while len(self._blocks) < self.num_blocks:
            self._blocks.append(Block(self, len(self._blocks)))
        return self._blocks[index]

    def global_block(self) -> Block:
        return self.block(0)

    def current_block(self) -> Block:
        return self.block(self._current)

    @property
    def current_block_idx(self) -> int:
        """The block that layers build into."""
        return self._current

    def create_block(self, parent_idx: int | None = None) -> Block:
        """Open a sub-block of the current block (or of ``parent_idx``); ops go there until `rollback`."""
        parent = self._current if parent_idx is None else parent_idx
        self._current = edit.add_block(self.desc, parent).idx
        return self.current_block()

    def rollback(self) -> None:
        """Go back to the parent of the current block."""
        self._current = self.current_block().parent_idx

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Inside the ``with``, layers build into the block around the current one."""
        before, self._current = self._current, self.current_block().parent_idx
        try:
            yield
        finally:
            self._current = before

    # the names that scripts for Fluid 1.x use
    _create_block = create_block
    _rollback = rollback

    def list_vars(self) -> Iterator[Variable]:
        """Every variable of every block."""
        return (var for block in self.blocks for var in block.vars.values())

    def all_parameters(self) -> list[Parameter]:
        return self.global_block().all_parameters()

    @contextmanager
    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Iterator[None]:
        """Ops appended inside the ``with`` compute a learning rate; scripts that scale one by hand say so by this."""
        with role_guard(ir.OpRole.LR_SCHED | (ir.OpRole.OPTIMIZE if is_with_opt else ir.OpRole.FORWARD)):
            yield

    @contextmanager
    def _optimized_guard(self, param_and_grads: Sequence[VarOrName]) -> Iterator[None]:
        """Ops appended inside the ``with`` train a parameter: scripts with an optimizer of their own say so by this."""
        with role_guard(ir.OpRole.OPTIMIZE, [name_of(var) for var in param_and_grads]):
            yield

    @contextmanager
    def _backward_role_guard(self) -> Iterator[None]:
        """Ops appended inside the ``with`` belong to the backward pass."""
        with role_guard(ir.OpRole.BACKWARD):
            yield

    def clone(self, for_test: bool = False) -> Program:
        """A deep copy. ``for_test``: backward and optimizer ops removed, ``is_test`` set on ops that have it."""
        twin = edit.clone(self.desc)
        if for_test:
            strip_training(twin)
        program = Program(twin)
        program.distribution = self.distribution
        program.loaders = list(self.loaders)
        return program

    def _inference_optimize(self, prune_read_op: bool = True) -> Program:
        """A copy with ``is_test`` set; the training ops stay. ``prune_read_op``: without what reads batches."""
        return Program(tested(self.desc, without_readers=prune_read_op))

    def _prune(self, targets: Sequence[VarOrName]) -> Program:
        """The part that computes ``targets``, by the name that scripts of Fluid call."""
        return self._prune_with_input((), targets)

    def _prune_with_input(self, feeded_var_names: Sequence[str], targets: Sequence[VarOrName]) -> Program:
        """The same, where what is fed needs no ops."""
        targets = [targets] if isinstance(targets, (str, Variable)) else list(targets)
        return Program(pruned(self.desc, [name_of(target) for target in targets], feeded_var_names))

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The text form (`core.text`)."""
        return text.show(self.desc)

    __str__ = to_string

    def serialize_to_string(self) -> bytes:
        """The ProgramDesc bytes, in the form of Fluid 1.8."""
        return _to_bytes(self.desc)

    @staticmethod
    def parse_from_string(binary_str: bytes) -> Program:
        """A program from ProgramDesc bytes of any version from 1.0 on."""
        from fluidlite.core import serde

        return Program(serde.from_bytes(binary_str))

    def __repr__(self) -> str:
        ops = sum(len(block.ops) for block in self.desc.blocks)
        return f"<Program of {self.num_blocks} blocks, {ops} ops>"


def _to_bytes(desc: ir.Program) -> bytes:
    """The ProgramDesc bytes; protobuf comes when they are first asked for."""
    from fluidlite.core import serde

    return serde.to_bytes(desc, fluid_form.complete)


# Scripts ask ``program.desc`` too.
setattr(ir.Program, "serialize_to_string", _to_bytes)  # noqa: B010


def as_program(program: Any) -> Any:
    """The program that a compiled one (`CompiledProgram` of scripts for Fluid) is made from; anything else as it is."""
    return getattr(program, "compiled_from", program)


def name_of(var: VarOrName) -> str:
    """The name of a Variable or a name."""
    if isinstance(var, str):
        return var
    if isinstance(var, Variable):
        return var.name
    raise ProgramError(f"expected a Variable or its name, not {type(var).__name__} ({var!r})")


def _argument_names(arguments: Arguments | None) -> dict[str, list[str]]:
    result = {}
    for key, value in (arguments or {}).items():
        if value is None:
            continue
        values = list(value) if isinstance(value, Iterable) and not isinstance(value, (Variable, str)) else [value]
        if values:
            result[key] = [name_of(item) for item in values]
    return result


@contextmanager
def op_role(role: ir.OpRole, role_var: Sequence[VarOrName] = ()) -> Iterator[None]:
    """Ops appended inside the ``with`` get this role and ``op_role_var``."""
    with role_guard(role, [name_of(var) for var in role_var]):
        yield
