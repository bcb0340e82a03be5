"""What all optimizers share: from gradients to optimizer ops, accumulators and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, TypeAlias

from fluidlite import framework, unique_name
from fluidlite.backward import Callback, NoGradSet, append_backward, no_grad_names
from fluidlite.clip import GradientClipBase, append_gradient_clip_ops, error_clip_callback
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.errors import GradientError, ProgramError
from fluidlite.framework import Block, Operator, Parameter, Program, Variable, VarOrName, name_scope, op_role
from fluidlite.framework.views import imperative
from fluidlite.ops import registry
from fluidlite.ops.registry import Accumulator, OpDef
from fluidlite.optimizer import rows
from fluidlite.optimizer.rows import LazyForms
from fluidlite.regularizer import WeightDecayRegularizer, append_regularization_ops

ParamGrad: TypeAlias = "tuple[Parameter, Variable]"
ParameterList: TypeAlias = "Sequence[VarOrName] | None"


class Optimizer:
    """Base of all optimizers.

    ``learning_rate`` is a number or a [1] Variable (a schedule, made in the program that is trained).
    ``parameter_list`` limits training to these parameters, ``regularization`` applies to parameters without a
    regularizer of their own, ``grad_clip`` clips gradients before that. ``name`` becomes part of accumulators' names.
    ``attrs`` are attributes of the optimizer op.
    """

    #: the type of the optimizer op
    op_type: ClassVar[str]
    #: ``op_device`` of the initial values of accumulators that are one number (Fluid's; programs are compared)
    whole_device: ClassVar[str | None] = None
    #: which regularisation of skipped rows is exact
    lazy: ClassVar[LazyForms] = LazyForms()

    def __init__(
        self,
        learning_rate: float | Variable,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        **attrs: Any,
    ) -> None:
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, (Real, Variable)):
            raise ProgramError(f"learning_rate must be a number or a Variable, not {learning_rate!r}")
        if isinstance(parameter_list, (str, bool, Variable)):
            raise ProgramError(f"parameter_list must be a list of parameters, not {parameter_list!r}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClipBase):
            raise ProgramError(f"grad_clip must be a fluid.clip.GradientClipBy... object, not {grad_clip!r}")
        self._learning_rate = learning_rate
        self._parameter_list = parameter_list
        self._name = name
        self.regularization = regularization
        self.grad_clip = grad_clip
        self._attrs = attrs
        #: program (uid) -> its learning rate
        self._rates: dict[int, Variable] = {}
        #: program (uid), parameter -> accumulators by the op's input name
        self._accumulators: dict[tuple[int, str], dict[str, Variable]] = {}

    def attrs(self, _param: Parameter, /) -> dict[str, Any]:
        """The attributes of the op that trains a parameter."""
        return self._attrs

    def first_value(self, acc: Accumulator, param: Parameter, /) -> float:
        """The initial value of an accumulator: its record's, or the attribute that the record names."""
        if not isinstance(acc.fill, str):
            return acc.fill
        given = self.attrs(param).get(acc.fill)
        return float(self._op_def.attrs[acc.fill].default if given is None else given)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: ParameterList = None,
        no_grad_set: NoGradSet = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append everything that one training step needs after the forward ops of ``loss`` ([1]).

        Accumulators and the learning rate are initialised in ``startup_program`` (default: the default one), which
        must be run afterwards. Returns (optimizer ops, (parameter, gradient) pairs).

        Raises GradientError as `append_backward` does; ProgramError for a parameter that this optimizer cannot train,
        a learning rate of another program, or a second `minimize` of a parameter.
        """
        params_grads = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, params_grads), params_grads

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: ParameterList = None,
        no_grad_set: NoGradSet = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[ParamGrad]:
        """The first half of `minimize`: append gradients of all trainable parameters; error clips are applied."""
        if not isinstance(loss, Variable):
            raise ProgramError(f"{type(self).__name__} minimizes a Variable, not {type(loss).__name__}")
        self._check_rate(loss.program)
        chosen = parameter_list if parameter_list is not None else self._parameter_list
        frozen = {param.name for param in loss.program.all_parameters() if not param.trainable}
        with framework.program_guard(loss.program, startup_program):
            params_grads = append_backward(
                loss, chosen, no_grad_names(no_grad_set).union(frozen), [*(callbacks or ()), error_clip_callback]
            )
        if not params_grads:
            raise GradientError(f"{type(self).__name__}: the loss {loss.name!r} depends on no parameter to train")
        return params_grads

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[ParamGrad]
    ) -> list[Operator]:
        """The second half of `minimize`: `apply_gradients` in the program of ``loss``."""
        with framework.program_guard(loss.program, startup_program):
            return self.apply_gradients(params_grads)

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Append clips, regularization and the optimizer ops for (parameter, gradient) pairs; returns the latter.

        Initial values go to the default startup program.
        """
        if not params_grads:
            raise ProgramError(f"{type(self).__name__}: apply_gradients was given no (parameter, gradient) pairs")
        pairs = sorted(params_grads, key=lambda pair: pair[0].name)
        for param, grad in pairs:
            self._refuse(param, grad)
            rows.refuse_lazy(self.lazy, self._decay_of(param), param, grad, type(self).__name__)
        for param, grad in pairs:
            if self._is_lazy(param, grad) and not param.is_distributed:
                rows.hold_in_table(param, type(self).__name__)
        with framework.program_guard(pairs[0][0].program):
            pairs = self.grad_clip(pairs) if self.grad_clip is not None else append_gradient_clip_ops(pairs)
            pairs = append_regularization_ops(pairs, self.regularization)
            return self._append_optimizer_ops(pairs)

    @property
    def _op_def(self) -> OpDef:
        return registry.get(self.op_type)

    def _refuse(self, param: Parameter, grad: Variable) -> None:
        """Raise ProgramError when this optimizer cannot train the parameter."""
        what = f"{type(self).__name__} cannot train {param.name!r}"
        sparse = grad.type is VarKind.SELECTED_ROWS
        if (param.program.desc.uid, param.name) in self._accumulators:
            raise ProgramError(f"{what} again: it has its accumulators already; use a second optimizer object")
        if param.is_distributed and self._op_def.needs_whole_param:
            raise ProgramError(
                f"{what}, a distributed table: {self.op_type!r} needs a norm of the whole parameter, which no process "
                "holds; use another optimizer for it, or is_distributed=False"
            )
        if param.is_distributed and not sparse:
            raise ProgramError(f"{what}: the distributed table is used by other ops than lookups, or inside a block")
        if sparse and "Grad" not in self._op_def.sparse:
            raise ProgramError(
                f"{what}: {self.op_type!r} takes no sparse gradient; use is_sparse=False or another optimizer"
            )

    def _append_optimizer_ops(self, pairs: Sequence[ParamGrad]) -> list[Operator]:
        block = pairs[0][0].program.global_block()
        first = len(block.desc.ops)
        for param, _ in pairs:
            self._create_accumulators(param)
        rate = self._rate_in(block.program, pairs[0][0].dtype)
        for param, grad in pairs:
            with op_role(OpRole.OPTIMIZE, [param, grad]), name_scope("optimizer"):
                self._append_optimizer_op(block, param, grad, rate)
        self._finish_update(block, pairs)
        return block.ops[first:]

    def _finish_update(self, block: Block, pairs: Sequence[ParamGrad]) -> None:
        """Append what follows all optimizer ops."""

    def _append_optimizer_op(self, block: Block, param: Parameter, grad: Variable, rate: Variable) -> None:
        """Append the optimizer op, with the regularisation that is no part of the gradient and the constraint."""
        state = self.accumulators_of(param)
        if self._moves_every_row(param, grad):
            grad = rows.over_every_row(param, grad)
        rate = _rate_for(param, rate) if self._reads_rate(param, grad) else rate
        update = {"Param": param, "Grad": grad, **state, "LearningRate": rate, **self.attrs(param)}
        self._append_decay(block, update, before=True)
        inputs = {name: update[name] for name in update if self._op_def.input_arg(name) is not None}
        outputs = {acc.output: state[acc.input] for acc in self._op_def.accumulators if acc.output}
        block.append_op(self.op_type, inputs, {"ParamOut": param, **outputs}, self.attrs(param))
        self._append_decay(block, update, before=False)
        if param.constraint is not None:
            param.constraint(param, grad, block)

    def _append_decay(self, block: Block, update: Mapping[str, Any], *, before: bool) -> None:
        """Append the regularisation that is no part of the gradient, where it stands before, or behind, the optimizer op,
        whose inputs and attributes are ``update``."""
        param, grad = update["Param"], update["Grad"]
        decay = self._decay_of(param)
        if decay is not None and self._decays_beside(param, grad) and before == (decay.form == "multiplicative"):
            rows.append_decay(block, self.lazy, decay, update)

    def _moves_every_row(self, param: Parameter, grad: Variable) -> bool:
        """Whether rows of a table must get a gradient of zeros, for the optimizer moves them as well as they decay."""
        decay = self._decay_of(param)
        dense = decay is not None and decay.form != "gradient" and decay.mode_for(param, grad) == "dense"
        return dense and param.is_distributed and self.lazy.moves

    def _reads_rate(self, param: Parameter, grad: Variable) -> bool:
        return self._op_def.input_arg("LearningRate") is not None or self._decays_beside(param, grad)

    def _decays_beside(self, param: Parameter, grad: Variable) -> bool:
        """Whether the regularisation of a parameter is a step of its own."""
        decay = self._decay_of(param)
        return decay is not None and (decay.form != "gradient" or self._is_lazy(param, grad))

    def _decay_of(self, param: Parameter) -> WeightDecayRegularizer | None:
        regularizer: WeightDecayRegularizer | None = param.regularizer or self.regularization
        return regularizer

    def _is_lazy(self, param: Parameter, grad: Variable) -> bool:
        """Whether rows of a parameter catch up when they are used."""
        decay = self._decay_of(param)
        return decay is not None and decay.mode_for(param, grad) == "lazy"

    def accumulators_of(self, param: Parameter) -> dict[str, Variable]:
        """The accumulators of a parameter by the op's input name; empty before `minimize`."""
        return self._accumulators.get((param.program.desc.uid, param.name), {})

    # the names that scripts for Fluid 1.x use
    current_step_lr = imperative("Optimizer.current_step_lr")
    clear_gradients = imperative("Optimizer.clear_gradients")
    state_dict = imperative("Optimizer.state_dict")
    set_dict = imperative("Optimizer.set_dict")

    @property
    def type(self) -> str:
        """The type of the optimizer op."""
        return self.op_type

    def get_opti_var_name_list(self) -> list[str]:
        """The names of all accumulators; empty before `minimize`."""
        return [var.name for found in self._accumulators.values() for var in found.values()]

    def _create_accumulators(self, param: Parameter) -> None:
        """Declare the accumulators and initialise them in the startup program.

        Those of a table become columns of it: their op makes nothing of the table's declared height.
        """
        key = (param.program.desc.uid, param.name)
        for acc in self._op_def.accumulators:
            name = f"{param.name}_{self._name}_{acc.name}" if self._name else f"{param.name}_{acc.name}"
            is_column = param.is_distributed and not acc.whole
            var = persistable(
                param.program,
                unique_name.generate(name),
                (1,) if acc.whole else param.shape,
                param.dtype,
                self.first_value(acc, param),
                table=param.name if is_column else None,
                device=self.whole_device if acc.whole else None,
            )
            self._accumulators.setdefault(key, {})[acc.input] = var

    def _check_rate(self, program: Program) -> None:
        rate = self._learning_rate
        if isinstance(rate, Variable) and rate.program is not program:
            raise ProgramError(
                f"{type(self).__name__}: the learning rate {rate.name!r} was made in another program than the loss; "
                "call the schedule inside the same program_guard"
            )

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """The variable that updates in a program read, None before `minimize`; scripts fetch it to log it."""
        program = framework.default_main_program() if program is None else program
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate if self._learning_rate.program is program else None
        return self._rates.get(program.desc.uid)

    def _rate_in(self, program: Program, dtype: str) -> Variable:
        """The learning rate's variable in a program; made once from a number."""
        self._check_rate(program)
        given = self._learning_rate
        if isinstance(given, Variable):
            return given
        uid = program.desc.uid
        if uid not in self._rates:
            rate = persistable(program, unique_name.generate("learning_rate"), (1,), dtype, float(given))
            rate.stop_gradient = True
            self._rates[uid] = rate
        return self._rates[uid]


def persistable(
    program: Program,
    name: str,
    shape: Sequence[int],
    dtype: str,
    value: float,
    *,
    table: str | None = None,
    device: str | None = None,
) -> Variable:
    """Declare a variable that lives across runs; the default startup program fills it, or makes a column of a table."""
    startup = framework.default_startup_program().global_block()
    startup.create_var(name, dtype, shape, persistable=True)
    attrs = {"shape": shape, "dtype": dtype_number(dtype), "value": value, "op_device": device}
    if table is not None:
        attrs |= {"auto_grown_table": True, "table_name": table}
    with op_role(OpRole.FORWARD):
        startup.prepend_op("fill_constant", outputs={"Out": name}, attrs=attrs)
    return program.global_block().create_var(name, dtype, shape, persistable=True)


def _rate_for(param: Parameter, rate: Variable) -> Variable:
    """The learning rate times the parameter's own factor."""
    factor = param.optimize_attr["learning_rate"]
    if factor == 1.0:
        return rate
    block = rate.program.global_block()
    scaled = block.create_var(unique_name.generate("tmp"), rate.dtype)
    with op_role(OpRole.LR_SCHED | OpRole.OPTIMIZE), name_scope("scale_with_param_lr"):
        block.append_op("scale", {"X": rate}, {"Out": scaled}, {"scale": factor})
    return scaled
