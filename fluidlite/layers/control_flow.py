"""Sub-blocks that run under a condition, counters, tensor arrays, and printing from inside a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias

from fluidlite.core import names
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Block, Variable, name_of, user_line
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper, require_dtype, require_variable
from fluidlite.layers.compare import equal, logical_and, logical_not
from fluidlite.layers.tensor import assign, cast, fill_constant

#: what the functions of `cond` return: nothing, a variable, or several
Result: TypeAlias = "Variable | Sequence[Variable] | None"


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """x + value for a [1] variable (integers stay integers), written to ``x`` itself unless ``in_place`` is False."""
    require_variable("increment", "x", x)
    helper = LayerHelper("increment")
    out = x if in_place else helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("increment", {"X": x}, {"Out": out}, {"step": float(value)})
    return out


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """A persistable int64 [1] that is ``begin`` in the first run and grows by ``step`` at the start of each later one.

    Asking for the same name again gives the same counter.
    """
    helper = LayerHelper("global_step_counter")
    block = helper.main_program.global_block()
    name = counter_name or names.STEP_COUNTER
    if block.has_var(name):
        return block.var(name)
    counter = helper.create_global_variable(persistable=True, name=name, dtype="int64", shape=[1])
    helper.set_variable_initializer(counter, Constant(begin - 1, force_cpu=True))
    block.prepend_op("increment", {"X": counter}, {"Out": counter}, {"step": float(step)})
    counter.stop_gradient = True
    return counter


# sub-blocks


@contextmanager
def sub_block(helper: LayerHelper) -> Iterator[Block]:
    """Ops appended inside the ``with`` go to a new block."""
    program = helper.main_program
    block = program.create_block()
    try:
        yield block
    finally:
        program.rollback()


def _arguments_of(block: Block, parent: Block, condition: str = "") -> tuple[list[str], list[str]]:
    """(outside variables that a block reads before it writes them, outside variables that it writes), sorted."""
    reads: set[str] = set()
    writes: set[str] = set()
    for op in block.desc.ops:
        reads.update(name for name in op.input_arguments() if name not in writes and name != condition)
        writes.update(op.output_arguments())
    find = parent.program.desc.find_var
    return (
        sorted(name for name in reads if name not in block.desc.vars),
        sorted(name for name in writes if find(name, parent.desc) is not None),
    )


def _step_scopes(block: Block) -> Variable:
    return block.create_var(type=VarKind.STEP_SCOPES)


class ConditionalBlock:
    """Ops that run only under a condition: ``with ConditionalBlock([condition], is_scalar_condition=True).block(): ...``

    With ``is_scalar_condition`` the one [1] bool variable must be true, else nothing that the block reads may be empty.
    """

    def __init__(self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None) -> None:
        self.inputs = [require_variable("conditional_block", "inputs", var) for var in inputs]
        if is_scalar_condition:
            require_dtype("conditional_block", self.inputs[0], ("bool",))
        self.is_scalar_condition = is_scalar_condition
        self.helper = LayerHelper("conditional_block", name)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Ops appended inside the ``with`` become the block."""
        parent = self.helper.block
        with sub_block(self.helper) as inside:
            yield
        reads, writes = _arguments_of(inside, parent)
        parent.append_op(
            "conditional_block",
            {"Cond": self.inputs, "Input": reads},
            {"Out": writes, "Scope": _step_scopes(parent)},
            {"sub_block": inside.idx, "is_scalar_condition": self.is_scalar_condition},
        )


class Switch:
    """The first case whose condition is true runs, else the default::

    with layers.Switch() as switch:
        with switch.case(layers.less_than(step, limit)):
            layers.assign(small, output=rate)
        with switch.default():
            layers.assign(large, output=rate)
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("switch", name)
        #: true while no case so far applied
        self._none_yet: Variable | None = None
        self._inside = False

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False

    @contextmanager
    def case(self, condition: Variable) -> Iterator[None]:
        """Ops that run when ``condition`` ([1] bool) is true and no case before was."""
        if not self._inside:
            raise ProgramError(f"Switch.case belongs inside `with Switch() as switch` ({user_line()})")
        before = self._none_yet
        if before is None:
            self._none_yet = logical_not(condition)
        else:
            self._none_yet = logical_and(before, logical_not(condition))
            condition = logical_and(before, condition)
        with ConditionalBlock([condition], is_scalar_condition=True).block():
            yield

    @contextmanager
    def default(self) -> Iterator[None]:
        """Ops that run when no case did."""
        if self._none_yet is None:
            raise ProgramError(f"Switch.default comes after at least one case ({user_line()})")
        with ConditionalBlock([self._none_yet], is_scalar_condition=True).block():
            yield


class While:
    """Ops that run again and again while ``cond`` ([1] bool) is true; they must write it: ``less_than(i, n, cond=cond)``.

    Variables made outside keep what the block writes to them; variables made inside start anew each time.
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        require_dtype("while", require_variable("while", "cond", cond), ("bool",))
        if cond.shape not in ((1,), ()):
            raise ShapeError(f"While: condition {cond.name!r} is {list(cond.shape)}, not one element ({user_line()})")
        self.condition = cond
        self.is_test = is_test
        self.helper = LayerHelper("while", name)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Ops appended inside the ``with`` become the body."""
        parent = self.helper.block
        with sub_block(self.helper) as inside:
            yield
        reads, writes = _arguments_of(inside, parent, self.condition.name)
        if self.condition.name not in writes:
            raise ProgramError(f"While: the body never writes its condition {self.condition.name!r} ({user_line()})")
        parent.append_op(
            "while",
            {"X": reads, "Condition": self.condition},
            {"Out": writes, "StepScopes": _step_scopes(parent)},
            {"sub_block": inside.idx, "is_test": self.is_test},
        )


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Variable],
    is_test: bool = False,
    name: str | None = None,
) -> list[Variable]:
    """Replace ``loop_vars`` by ``body(*loop_vars)`` while ``cond(*loop_vars)`` ([1] bool) is true; the variables."""
    state = [require_variable("while_loop", "loop_vars", var) for var in loop_vars]
    if not state:
        raise ProgramError(f"while_loop: loop_vars is empty ({user_line()})")
    require_functions("while_loop", cond, body)
    condition = cond(*state)
    with While(condition, is_test, name).block():
        updated = _as_list(body(*state))
        if len(updated) != len(state):
            raise ProgramError(
                f"while_loop: the body returns {len(updated)} variables for {len(state)} loop_vars ({user_line()})"
            )
        again = cond(*updated)
        for new, old in zip(updated, state, strict=True):
            assign(new, old)
        assign(again, condition)
    return state


def cond(
    pred: Variable,
    true_fn: Callable[[], Result] | None = None,
    false_fn: Callable[[], Result] | None = None,
    name: str | None = None,
) -> Result:
    """What ``true_fn()`` returns when ``pred`` ([1] bool) is true, else what ``false_fn()`` does.

    Both build their ops into blocks of their own, of which one runs. They return as many variables as each other:
    none, one, or a list.
    """
    require_functions("cond", *(build for build in (true_fn, false_fn) if build is not None))
    helper = LayerHelper("cond", name)
    yes = _branch(helper, pred, true_fn)
    no = _branch(helper, logical_not(pred), false_fn) if false_fn is not None else None
    on_true, on_false = _as_list(yes), _as_list(no)
    if len(on_true) != len(on_false):
        raise ProgramError(
            f"cond: true_fn returns {len(on_true)} variables and false_fn {len(on_false)} ({user_line()})"
        )
    if not on_true:
        return None
    mask = cast(pred, "int32")
    merged = [helper.create_variable(dtype=var.dtype) for var in on_true]
    for index, result in enumerate(merged):
        helper.append_op("select_input", {"X": [on_false[index], on_true[index]], "Mask": mask}, {"Out": result})
    return merged[0] if isinstance(yes, Variable) else merged


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Callable[[], Result]]],
    default: Callable[[], Result] | None = None,
    name: str | None = None,
) -> Result:
    """What the function of the first pair gives whose [1] bool is true, else what ``default`` does (the last function,
    where there is no default)."""
    pairs = _pairs("case", pred_fn_pairs)
    if not pairs:
        raise ProgramError(f"case: pred_fn_pairs is empty ({user_line()})")
    if default is None:
        default = pairs.pop()[1]
    chosen = default
    for pred, function in reversed(pairs):
        chosen = partial(cond, pred, function, chosen, name)
    return chosen()


def switch_case(
    branch_index: Variable,
    branch_fns: Mapping[int, Callable[[], Result]] | Sequence[Any],
    default: Callable[[], Result] | None = None,
    name: str | None = None,
) -> Result:
    """What the function of number ``branch_index`` ([1] integer) gives, else what ``default`` does (the function of the
    highest number, where there is no default).

    ``branch_fns``: functions by number, (number, function) pairs, or functions numbered from 0.
    """
    require_dtype(
        "switch_case", require_variable("switch_case", "branch_index", branch_index), ("uint8", "int32", "int64")
    )
    index = branch_index if branch_index.dtype == "int64" else cast(branch_index, "int64")
    items: list[Any] = list(branch_fns.items()) if isinstance(branch_fns, Mapping) else list(branch_fns)
    pairs = list(enumerate(items)) if all(map(callable, items)) else _pairs("switch_case", items)
    if not all(isinstance(number, int) for number, _ in pairs):
        raise ProgramError(f"switch_case: the functions are numbered by integers, not as {pairs} ({user_line()})")
    if not pairs or len({number for number, _ in pairs}) < len(pairs):
        raise ProgramError(f"switch_case: branch_fns is empty or names a number twice ({user_line()})")
    if default is None:
        *pairs, (_, default) = sorted(pairs, key=lambda pair: pair[0])
    chosen = default
    tests = [(equal(index, fill_constant([1], "int64", number)), function) for number, function in pairs]
    for pred, function in tests:
        chosen = partial(cond, pred, function, chosen, name)
    return chosen()


def require_functions(layer: str, *functions: object) -> None:
    """Refuse what cannot be called."""
    for function in functions:
        if not callable(function):
            raise ProgramError(f"{layer}: {function!r} is no function ({user_line()})")


def _pairs(layer: str, given: Any) -> list[tuple[Any, Callable[[], Result]]]:
    """(what chooses it, a function) pairs."""
    pairs = list(given) if isinstance(given, Sequence) else None
    if pairs is None or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ProgramError(f"{layer}: {given!r} must be a list of pairs with a function each ({user_line()})")
    require_functions(layer, *(function for _, function in pairs))
    return pairs


def _branch(helper: LayerHelper, pred: Variable, build: Callable[[], Result] | None) -> Result:
    """One branch of `cond`: its results, copied to variables outside its block."""
    if build is None:
        return None
    parent = helper.block
    with ConditionalBlock([pred], is_scalar_condition=True).block():
        result = build()
        outside = []
        for var in _as_list(result):
            outside.append(parent.create_var(dtype=var.dtype, shape=var.shape))
            assign(var, outside[-1])
    return outside[0] if isinstance(result, Variable) else outside


def _as_list(result: Any) -> list[Variable]:
    if result is None:
        return []
    items = list(result) if isinstance(result, (list, tuple)) else [result]
    return [require_variable("control flow", "a returned value", item) for item in items]


# tensor arrays


def create_array(dtype: object) -> Variable:
    """An empty array of tensors, to be written by `array_write`."""
    helper = LayerHelper("array")
    return helper.create_variable(name=f"{helper.name}.out", type=VarKind.LOD_TENSOR_ARRAY, dtype=dtype)


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Element ``i`` ([1] int64) of ``array`` (a new one by default) becomes ``x``; the array grows as needed."""
    helper = LayerHelper("array_write")
    require_variable("array_write", "x", x)
    if array is None:
        array = helper.create_variable(name=f"{helper.name}.out", type=VarKind.LOD_TENSOR_ARRAY, dtype=x.dtype)
    helper.append_op("write_to_array", {"X": x, "I": i}, {"Out": array})
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """Element ``i`` ([1] int64) of an array."""
    require_array("array_read", array)
    return LayerHelper("array_read").one("read_from_array", {"X": array, "I": i}, dtype=array.dtype)


def array_length(array: Variable) -> Variable:
    """How many elements an array has; [1] int64."""
    require_array("array_length", array)
    return LayerHelper("array_length").one("lod_array_length", {"X": array}, dtype="int64", stop_gradient=True)


def require_array(layer: str, array: Variable) -> None:
    """Refuse what is no tensor array."""
    if require_variable(layer, "array", array).type is not VarKind.LOD_TENSOR_ARRAY:
        raise ProgramError(f"{layer}: {name_of(array)!r} is no tensor array ({user_line()})")


def Print(  # noqa: N802 - Fluid's name
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Print a variable each time the op runs, or the ``first_n`` times; at most ``summarize`` elements (-1: all)."""
    require_variable("Print", "input", input)
    attrs = {
        "first_n": first_n,
        "message": message or "",
        "summarize": summarize,
        "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type,
        "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod,
        "print_phase": print_phase.upper(),
    }
    return LayerHelper(f"print_{input.name}").one("print", {"In": input}, attrs, dtype=input.dtype)
