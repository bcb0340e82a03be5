"""ParamAttr: how a layer makes one of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

from fluidlite.errors import ProgramError
from fluidlite.initializer import Initializer

#: What layers accept as ``param_attr`` or ``bias_attr``: a ParamAttr, a name, an Initializer, a regularizer, True or
#: None (defaults), False (no such parameter). Regularizers are told by being callable: `fluidlite.regularizer`
#: stands beside this module, not above it.
AttrLike: TypeAlias = "ParamAttr | Initializer | str | bool | Any | None"


class ParamAttr:
    """Name, initial value and training options of a parameter.

    ``learning_rate`` multiplies the optimizer's. ``regularizer`` replaces the optimizer's for this parameter.
    ``constraint`` (`fluidlite.constraint`) holds the rows that a step updates.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        gradient_clip: Any = None,
        constraint: Any = None,
    ) -> None:
        if name is not None and not (isinstance(name, str) and name):
            raise ProgramError(f"ParamAttr: name must be a non-empty string, not {name!r}")
        if initializer is not None and not isinstance(initializer, Initializer):
            raise ProgramError(f"ParamAttr {name or ''}: initializer must be an Initializer, not {initializer!r}")
        self.name = name
        self.initializer = initializer
        self.learning_rate = float(learning_rate)
        self.regularizer = regularizer
        self.trainable = bool(trainable)
        self.do_model_average = bool(do_model_average)
        self.gradient_clip = gradient_clip
        self.constraint = constraint

    @classmethod
    def of(cls, attr: AttrLike) -> ParamAttr | None:
        """The ParamAttr that a shorthand stands for, a copy of one that is given; None for False."""
        if attr is None or attr is True:
            return cls()
        if attr is False:
            return None
        if isinstance(attr, ParamAttr):
            return copy.copy(attr)
        if isinstance(attr, str):
            return cls(name=attr)
        if isinstance(attr, Initializer):
            return cls(initializer=attr)
        if callable(attr):
            return cls(regularizer=attr)
        raise ProgramError(f"{attr!r} is no ParamAttr, name, Initializer, regularizer or bool")

    @classmethod
    def many(cls, attr: AttrLike | Sequence[AttrLike], count: int) -> list[ParamAttr]:
        """One ParamAttr per input of a layer: a list gives each its own, anything else is used for all."""
        given = list(attr) if isinstance(attr, (list, tuple)) else [attr] * count
        if len(given) != count:
            raise ProgramError(f"{len(given)} param_attr were given for {count} inputs")
        attrs = [cls.of(item) for item in given]
        if None in attrs:
            raise ProgramError("param_attr=False: a layer cannot do without its weight")
        return [item for item in attrs if item is not None]

    def __repr__(self) -> str:
        return f"<ParamAttr {self.name or '(automatic name)'}>"
