"""Builds and parses every derived variable name. No other module joins or splits names."""

from __future__ import annotations

from typing import Final, NamedTuple

GRAD: Final = "@GRAD"
LR_COUNTER: Final = "@LR_DECAY_COUNTER@"
STEP_COUNTER: Final = "@STEP_COUNTER@"
#: what the pserver's `scale` multiplies a round's sum with: 1 / contributions
CONTRIBUTION_SCALE: Final = "@CONTRIBUTION_SCALE@"
#: which trainer's step a server applies
TRAINER_ID: Final = "@TRAINER_ID@"
#: geo: steps since the last exchange, how much of a gain one trainer sends, whether the exchange is the last one
GEO_STEPS: Final = "@GEO_STEPS@"
GEO_SHARE: Final = "@GEO_SHARE@"
GEO_LAST: Final = "@GEO_LAST@"
#: the values on the way to the compensation of a delayed gradient
DELAY_PARTS: Final = ("seen", "drift", "half", "whole")
_RENAME: Final = "@RENAME@block"
_AGAIN: Final = "grad/"
_TRAINER: Final = ".trainer_"
_PSERVER: Final = ".pserver_"
_CONTROL: Final = "__control_var@"
_DELTA: Final = ".delta"
_BLOCK: Final = ".block"
_SHARD: Final = ".shard"
_IDS: Final = ".ids"
_FUSED: Final = ".fused"
_INSIDE: Final = " of block "
_GEO: Final = ".geo_"


class SliceName(NamedTuple):
    """The parts of a variable's name on the wire: ``origin``, slice index or None, trainer or None."""

    origin: str
    block: int | None
    trainer: int | None


def grad(name: str) -> str:
    """``x`` -> ``x@GRAD``."""
    return name + GRAD


def is_grad(name: str) -> bool:
    """Whether a name denotes a gradient (a renamed piece included)."""
    return GRAD in name


def forward_of(name: str) -> str:
    """``x@GRAD``, ``x@GRAD@RENAME@block0@1``, ``x@GRAD_0``, ``grad/grad/x@GRAD`` -> ``x``; any other name is returned
    as it is."""
    return _strip_again(name).split(GRAD, 1)[0] if is_grad(name) else name


def grad_again(name: str, call: int) -> str:
    """The gradient of ``name`` made by the ``call``-th backward pass over a program (Fluid 1.8's form).

    >>> grad_again("x", 2)
    'grad/grad/x@GRAD'
    """
    return _AGAIN * call + grad(name)


def grad_call(name: str) -> int:
    """Which backward pass made a gradient: 1 for ``x@GRAD``, 2 for ``grad/grad/x@GRAD``."""
    return max(1, (len(name) - len(_strip_again(name))) // len(_AGAIN))


def shape_of(name: str) -> str:
    """The variable that holds the run-time shape of ``name``."""
    return f"{name}_shape"


def piece(gradient: str, block: int, index: int) -> str:
    """One of several contributions to a gradient before they are summed (Fluid 1.8's form)."""
    return f"{gradient}{_RENAME}{block}@{index}"


def inside(name: str, block: int) -> str:
    """A variable of a sub-block that has the name of another block's, while a plan runs both: ``x`` -> ``x of block 2``."""
    return f"{name}{_INSIDE}{block}"


def declared(name: str) -> str:
    """The name that a program declares: ``x of block 2`` -> ``x``; any other name is returned as it is."""
    return name.split(_INSIDE, 1)[0]


def slice_of(name: str, index: int) -> str:
    """Slice ``index`` of a dense variable: ``w`` -> ``w.block0``."""
    return f"{name}{_BLOCK}{index}"


def of_trainer(name: str, trainer: int) -> str:
    """A trainer's contribution on a server: ``g`` -> ``g.trainer_1``."""
    return f"{name}{_TRAINER}{trainer}"


def backup_of(param: str, trainer: int) -> str:
    """A parameter of a server as a trainer last saw it: ``w`` -> ``w.trainer_1_bak`` (Fluid's form)."""
    return f"{param}{_TRAINER}{trainer}_bak"


def delay_part(param: str, part: str) -> str:
    """One of `DELAY_PARTS`: ``w`` -> ``w.delay_seen``."""
    return f"{param}.delay_{part}"


def delta(param: str) -> str:
    """What a parameter gained by local training, on its way to a server: ``w`` -> ``w.delta`` (Fluid's form)."""
    return f"{param}{_DELTA}"


def geo_part(param: str, part: str) -> str:
    """A value of a trainer that trains by itself: ``part`` is exchanged, rows, fresh, ..."""
    return f"{param}{_GEO}{part}"


def geo_owner(part: str) -> str:
    """The parameter of a `geo_part`: ``w.geo_rows`` -> ``w``."""
    return part.rpartition(_GEO)[0]


def is_control(name: str) -> bool:
    """Whether a variable only orders ops of a program that Fluid transpiled."""
    return name.startswith(_CONTROL)


def is_clock(name: str) -> bool:
    """Whether a variable counts the steps of one trainer of a program that Fluid transpiled."""
    return name.startswith(LR_COUNTER + _TRAINER)


def on_wire(name: str) -> str:
    """What a variable that Fluid's trainers send is called here, where a message says who sends it and to whom.

    >>> on_wire("w@GRAD.block0.trainer_1"), on_wire("emb@GRAD.trainer_1.pserver_0")
    ('w@GRAD.block0', 'emb@GRAD')
    """
    return _cut_number(without_server(name), _TRAINER)[0]


def without_server(name: str) -> str:
    """A part of a gradient for one server, as the gradient: ``emb@GRAD.trainer_1.pserver_0`` -> ``emb@GRAD.trainer_1``."""
    return _cut_number(name, _PSERVER)[0]


def table_value(table: str, value: str) -> str:
    """An accumulator of a table that Fluid 2.0 knew by name: ``emb``, ``Moment1`` -> ``emb@Moment1``."""
    return f"{table}@{value}"


def delta_on_wire(name: str) -> str:
    """A slice's delta of Fluid's form, ``w.block0.delta``, in ours: ``w.delta.block0``."""
    part = parse_slice(name.removesuffix(_DELTA))
    return delta(part.origin) if part.block is None else slice_of(delta(part.origin), part.block)


def shard_of_var(name: str, shard: int) -> str:
    """What goes to, or comes from, one server of a table: ``emb@GRAD`` -> ``emb@GRAD.shard0``."""
    return f"{name}{_SHARD}{shard}"


def merged(gradient: str) -> str:
    """A sparse gradient whose duplicate rows are summed."""
    return f"{gradient}.merged"


def lookup_part(table: str, part: str, index: int) -> str:
    """A variable of lookup ``index`` of a table: ``part`` is ids, rows, ..."""
    return f"{table}.{part}{index}"


def looked_up(ids: str) -> str:
    """The parameter of a lookup, from what one server gets of its ids; any other name is returned as it is.

    >>> looked_up("emb.ids0.shard1")
    'emb'
    """
    rest, shard = _cut_number(ids.removesuffix(_FUSED), _SHARD)
    source, lookup = _cut_number(rest, _IDS)
    return ids if shard is None or lookup is None else source


def served_part(table: str, part: str) -> str:
    """A variable of a server's lookup block: ``emb`` -> ``emb.ids``, ``emb.rows``."""
    return f"{table}.{part}"


def fused(name: str) -> str:
    """What a fused op gives in place of ``name`` and others: all they hold, in one."""
    return name + _FUSED


def new_gradient(gradient: str) -> str:
    """A sparse gradient that a regularizer made dense (Fluid's suffix)."""
    return f"{gradient}@NEWGRAD@"


def parse_slice(name: str) -> SliceName:
    """Take a name apart.

    >>> parse_slice("fc_0.w_0@GRAD.block1.trainer_0")
    SliceName(origin='fc_0.w_0@GRAD', block=1, trainer=0)
    """
    rest, trainer = _cut_number(name, _TRAINER)
    origin, block = _cut_number(rest, _BLOCK)
    return SliceName(origin, block, trainer)


def _cut_number(name: str, mark: str) -> tuple[str, int | None]:
    head, found, tail = name.rpartition(mark)
    if found and tail.isascii() and tail.isdigit():
        return head, int(tail)
    return name, None


def _strip_again(name: str) -> str:
    while name.startswith(_AGAIN):
        name = name.removeprefix(_AGAIN)
    return name
