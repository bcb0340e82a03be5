"""Lists of ids under a signature, so that they travel once: a push mostly carries the ids that were just pulled.

The trainer gives each long list that it pulls a signature, 128 bits that no other list has, and remembers the last few. A
gradient whose rows are one of them carries the signature in their place. The server remembers a few more; what it does not
know (it is another process, or forgot) it refuses with ForgottenError, and the trainer sends the rows.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from itertools import count
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ForgottenError
from fluidlite.protocol.messages import Identity

#: shorter lists cost less than their signatures
WORTH: Final = 1024
#: lists that a trainer remembers of what it pulled from one server, and a server of each trainer: more, so that it mostly
#: knows what the trainer remembers
_TRAINERS, _SERVERS = 4, 8
#: ids that a server remembers of each trainer
_MOST_IDS: Final = 1 << 22


class SentLists:
    """The lists that a trainer pulled last from one server. For any number of threads."""

    def __init__(self) -> None:
        self._prefix = secrets.token_bytes(8)
        self._numbers = count()
        self._lists: deque[tuple[bytes, Array]] = deque(maxlen=_TRAINERS)

    def sign(self, ids: Array) -> bytes:
        """A new signature for ``ids`` (n,), which may change afterwards; b"" where they are few."""
        if len(ids) < WORTH:
            return b""
        signature = self._prefix + next(self._numbers).to_bytes(8, "little")
        self._lists.append((signature, ids.copy()))
        return signature

    def find(self, ids: Array) -> bytes:
        """The signature of the latest list equal to ``ids``, b"" when none is."""
        if len(ids) < WORTH:
            return b""
        for signature, known in reversed(tuple(self._lists)):
            if len(known) == len(ids) and known[0] == ids[0] and known[-1] == ids[-1] and np.array_equal(known, ids):
                return signature
        return b""

    def forget(self) -> None:
        """The server does not know them."""
        self._lists.clear()


class KnownLists:
    """The lists that trainers signed last, as a server remembers them. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: of each trainer: its incarnation, and its lists, the oldest first
        self._of: dict[tuple[str, int], tuple[int, OrderedDict[bytes, Array]]] = {}

    def put(self, who: Identity, signature: bytes, ids: Array) -> None:
        """Remember ``ids``, which must not change, for this incarnation of a trainer; of others nothing is kept."""
        key = who.job, who.trainer
        with self._lock:
            incarnation, lists = self._of.get(key, (who.incarnation, OrderedDict()))
            if incarnation != who.incarnation:
                lists = OrderedDict()
            self._of[key] = who.incarnation, lists
            lists[signature] = ids
            while len(lists) > _SERVERS or (lists and sum(map(len, lists.values())) > _MOST_IDS):
                lists.popitem(last=False)

    def get(self, who: Identity, signature: bytes) -> Array:
        """The ids that a trainer signed; ForgottenError when they are not known (any more)."""
        with self._lock:
            incarnation, lists = self._of.get((who.job, who.trainer), (who.incarnation, OrderedDict()))
            found = lists.get(signature) if incarnation == who.incarnation else None
        if found is None:
            raise ForgottenError(f"signature {signature.hex()} of trainer {who.trainer} is not known here")
        return found
