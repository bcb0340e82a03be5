"""What servers keep on disk, as the attributes of `listen_and_serv` carry it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from fluidlite.core.ir import Operator
from fluidlite.ops.registry import AttrSpec, bool_attr, int_attr, string_attr


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where servers keep what they are, and how often. Every field is the attribute of its name.

    ``checkpoint_dir``: a folder or fsspec URL that all servers share, "" for no checkpoints. One is written every
    ``checkpoint_every`` versions (0: never for that reason), when the log has ``log_limit`` megabytes, and at the end; one
    of ``checkpoint_full_every`` is whole, the others hold what changed. ``checkpoint_keep_max``: how many whole ones of the
    job stay, 0: all. ``log_dir``: a folder of the server's machine for the log of what it acknowledged since, "" for none;
    with ``log_fsync`` that outlives the machine, and not only the process.
    """

    checkpoint_dir: str = ""
    checkpoint_every: int = 0
    checkpoint_full_every: int = 8
    checkpoint_keep_max: int = 3
    log_dir: str = ""
    log_fsync: bool = False
    log_limit: int = 256

    @staticmethod
    def read(listen: Operator) -> Keeping:
        """What a `listen_and_serv` op says."""
        return Keeping(**{field.name: listen.attr(field.name, field.default) for field in fields(Keeping)})

    def attributes(self) -> dict[str, Any]:
        """The attributes of a `listen_and_serv` op that say so; defaults are left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value != ATTRS[name].default}

    def contradictions(self) -> Iterator[str]:
        """What makes no sense."""
        for name in ("checkpoint_every", "checkpoint_keep_max"):
            if getattr(self, name) < 0:
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        for name in ("checkpoint_full_every", "log_limit"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        if self.checkpoint_every and not self.checkpoint_dir:
            yield "checkpoint_every needs a checkpoint_dir"


ATTRS: Final[dict[str, AttrSpec]] = {
    "checkpoint_dir": string_attr("", "folder or URL of checkpoints; empty: none"),
    "checkpoint_every": int_attr(0, "versions between two checkpoints; 0: only at the end and for the log"),
    "checkpoint_full_every": int_attr(8, "one of so many checkpoints is whole, the others hold what changed"),
    "checkpoint_keep_max": int_attr(3, "how many whole checkpoints stay; 0: all"),
    "log_dir": string_attr("", "folder of the log of what was acknowledged; empty: none"),
    "log_fsync": bool_attr(default=False, doc="the log outlives the machine"),
    "log_limit": int_attr(256, "megabytes of log from which on a checkpoint is written"),
}
