"""Keeper: what a server remembers beyond its end, as checkpoints and a log of the events since the last one."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from fluidlite.checkpoint.catalogue import Catalogue
from fluidlite.checkpoint.cut import Cut
from fluidlite.checkpoint.storage import open_folder
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.errors import CorruptFileError, FluidliteError, MissingFileError, RequestRefusedError, ServerFailedError
from fluidlite.ops.keeping import Keeping
from fluidlite.protocol.events import Assigned, Completed, Event, Lost, NewJob, Settled
from fluidlite.pserver.cut import Held, load, take_cut
from fluidlite.pserver.journal import Journal, lock, read_segment, remove_unbegun, segment_path, segments
from fluidlite.pserver.ledger import Ledger

log = logging.getLogger("fluidlite")
#: checkpoints whose events since then are kept: if the last one turns out to be damaged, nothing is lost either
_KEPT_BACK: Final = 2
#: numbers of checkpoints that the names of their folders have room for
_MOST: Final = 10**18
#: why a server that is asked for a checkpoint refuses
NO_CHECKPOINTS: Final = "this server keeps no checkpoints; give DistributeTranspilerConfig a checkpoint_dir"


class Keeper:
    """Keeps what server ``server`` of ``servers`` of a job is, and makes it again.

    ``held``: the values of the server, for checkpoints; ``run``: names the job in them; ``again``: the process was started
    again, for the same job. Its methods but `wait` are called under the service's lock;
    checkpoints are written by a thread of its own.
    """

    def __init__(
        self,
        keeping: Keeping,
        server: int,
        servers: int,
        held: Held | None = None,
        run: str = "",
        *,
        again: bool = False,
    ) -> None:
        self._keeping = keeping
        self._whose: dict[str, Any] = {"server": server, "servers": servers}
        self._events = Path(keeping.log_dir) / f"server-{server}-of-{servers}" if keeping.log_dir else None
        self._journal: Journal | None = None
        self._again = again
        self._held = held
        self._history = secrets.randbits(62)
        #: that of the checkpoint which was taken, if any
        self._known_history: int | None = None
        self._writer = (
            CheckpointWriter(keeping.checkpoint_dir, server, servers, keeping.checkpoint_keep_max, run)
            if keeping.checkpoint_dir and held is not None
            else None
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        #: held while the segments that begin with a checkpoint change
        self._lock = threading.Lock()
        self._begun: list[int] = []
        #: version and number of the checkpoint that was begun last, whether something was assigned and somebody left since
        self._written = 0
        self._number = 0
        self._assigned = self._left = False
        self._closed = False
        self._full_in = 0
        #: of the log's folder, while it is ours
        self._locked: int | None = None

    def restore(self, ledger: Ledger) -> int:
        """Make the server again from the last good checkpoint and the events since; the history that they make up.

        Afterwards events can be recorded. Raises CorruptFileError where the log is damaged or of another server.
        """
        if self._events is not None:
            self._locked = lock(self._events)
        found = segments(self._events) if self._events is not None else []
        if found and remove_unbegun(self._folder, found[-1]):
            found.pop()
        first, loaded = self._load(ledger, logged=bool(found))
        if not loaded and not found:
            self._refuse_to_begin_anew()
        self._replay(ledger, [number for number in found if number >= first], first)
        if found:
            self._refuse_to_go_back(ledger.store.version)
        if found or loaded:
            log.info("the server is back at version %d", ledger.store.version)
            ledger.members.begin_anew()
        if self._events is not None and loaded and not found:
            self._begin(ledger, self._number).result()  # what the log is to follow, or it would be taken for the whole
        if self._events is not None:
            head = {**self._whose, "history": self._history}
            last = found[-1] if found else 0
            self._journal = Journal(self._events, max(first, last), head, fsync=self._keeping.log_fsync)
        if ledger.members.is_over and not self._again:
            self.record(NewJob())
            ledger.take(NewJob())
        return self._history

    def _note(self, event: Event) -> None:
        """What a checkpoint would lack although the version is the same."""
        self._assigned = self._assigned or isinstance(event, Assigned)
        self._left = self._left or isinstance(event, Completed | Lost)

    def _replay(self, ledger: Ledger, found: Sequence[int], first: int) -> None:
        """Take the events of segments again, the first of which must be ``first``."""
        if found and found[0] != first:
            self._refuse_to_go_back(self._written)
            raise CorruptFileError(
                f"{self._events} lacks the events from segment {first} on; it begins with {found[0]}"
            )
        for number in found:
            head, events = read_segment(self._folder, number, last=number == found[-1])
            self._history = self._checked_history(head)
            for event in events:
                self._retake(ledger, event, number)
                self._note(event)

    def _refuse_to_begin_anew(self) -> None:
        """CorruptFileError where there are logs of a job with another number of servers, and no checkpoint to go on from."""
        folder, servers = Path(self._keeping.log_dir or "."), self._whose["servers"]
        others = {path.name for path in folder.glob("server-*-of-*") if not path.name.endswith(f"-of-{servers}")}
        if self._events is not None and others:
            raise CorruptFileError(
                f"{folder} holds the logs of another number of servers ({', '.join(sorted(others))}), and there is no checkpoint "
                f"from which {servers} could go on: start as many servers, or remove the folder to begin anew"
            )

    def _refuse_to_go_back(self, version: int) -> None:
        """CorruptFileError where the job has gone on with another number of servers since this log was written."""
        if self._writer is None:
            return
        of_others = [
            c
            for c in Catalogue(open_folder(self._keeping.checkpoint_dir)).whole()
            if c.servers != self._whose["servers"]
        ]
        if of_others and of_others[-1].number > version:
            newer = of_others[-1]
            raise CorruptFileError(
                f"{self._events} ends at version {version}, but the job went on to {newer} with {newer.servers} servers; remove "
                "the folder to go on from there"
            )

    def _retake(self, ledger: Ledger, event: Event, segment: int) -> None:
        try:
            ledger.retake(event)
        except FluidliteError as error:
            raise CorruptFileError(f"{segment_path(self._folder, segment)}: {error}") from error

    def record(self, event: Event) -> int:
        """Append an event to the log; its number, to `wait` for."""
        self._note(event)
        return self._journal.append(event) if self._journal is not None else 0

    def wait(self, number: int) -> None:
        """Until the event of this number is written. ServerFailedError when it cannot be."""
        if self._journal is not None:
            self._journal.wait(number)

    def look(self, ledger: Ledger, *, ends: bool = False) -> None:
        """After an event: begin a checkpoint if it is time for one. ``ends``: it is, whatever came before."""
        version = ledger.store.version
        lacking = self._assigned or self._left or (self._writing is not None and _failed(self._writing))
        if self._writer is None or self._closed or (version <= self._written and not (ends and lacking)):
            return
        every, journal = self._keeping.checkpoint_every, self._journal
        due = bool(every) and version % every == 0
        full = journal is not None and journal.size >= self._keeping.log_limit << 20 and not self.is_writing
        number = max(version, self._number) if ends else version
        if (due or full or ends) and not (number < self._number and self._has(number)):  # a later one may build on it
            self._begin(ledger, number)

    def begin(self, ledger: Ledger, number: int, folder: str = "") -> Future[None]:
        """Begin checkpoint ``number`` now, unless it was and nothing changed since; its result is there when it is written.
        One that a later one may build on stays as it is.

        RequestRefusedError where no checkpoints are kept, or not in ``folder``.
        """
        kept = self._keeping.checkpoint_dir
        if self._writer is None:
            raise RequestRefusedError(NO_CHECKPOINTS)
        if folder and folder.rstrip("/") != kept.rstrip("/"):
            raise RequestRefusedError(f"this server keeps its checkpoints in {kept!r}, not in {folder!r}")
        if not 0 <= number < _MOST:
            raise RequestRefusedError(f"a checkpoint has a number from 0 to {_MOST - 1}, not {number}")
        same = (number, ledger.store.version, False) == (self._number, self._written, self._assigned)
        if same and self._writing is not None and not _failed(self._writing):
            return self._writing
        if number < self._number and self._has(number):
            there: Future[None] = Future()
            there.set_result(None)
            return there
        return self._begin(ledger, number)

    def _has(self, number: int) -> bool:
        """Whether this server wrote a checkpoint of that number."""
        catalogue = Catalogue(open_folder(self._keeping.checkpoint_dir))
        server, servers = self._whose["server"], self._whose["servers"]
        return any((c.number, c.servers) == (number, servers) and server in c.manifests for c in catalogue.checkpoints)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._writing is not None and not self._writing.done()

    def close(self) -> None:
        """Write what was recorded and begun. Idempotent."""
        self._closed = True
        self._background.shutdown(wait=True)
        if self._journal is not None:
            self._journal.close()
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    @property
    def failure(self) -> str:
        """Why nothing can be kept any more, "" where it can."""
        wrong = self._journal.failure if self._journal is not None else None
        return f"the log in {self._events} cannot be written: {wrong}" if wrong is not None else ""

    def check_last(self) -> None:
        """Raise what went wrong with the log, or with the checkpoint that was begun last."""
        if self.failure:
            raise ServerFailedError(self.failure)
        if self._writing is not None and (error := self._writing.exception()) is not None:
            raise error

    @property
    def _folder(self) -> Path:
        assert self._events is not None
        return self._events

    def _load(self, ledger: Ledger, *, logged: bool) -> tuple[int, bool]:
        """Take the last good checkpoint, if there is any; the first segment of the log that follows it, and whether there
        was one.

        A server that has a log comes back as it was, whatever the others are; one that has none only together with them,
        and with the number of servers that there are now.
        """
        if self._writer is None or self._held is None:
            return 0, False
        server, servers = self._whose["server"], self._whose["servers"]
        try:
            restored = load(self._held, self._keeping.checkpoint_dir, server, servers, alone=logged)
        except MissingFileError as error:
            log.debug("no checkpoint: %s", error)
            return 0, False
        self._written, self._number = restored.version, restored.number
        log.info("the server takes checkpoint %d, version %d", restored.number, restored.version)
        extra = restored.extras[
            server if server in restored.extras and restored.servers == servers else min(restored.extras)
        ]
        try:
            if "ledger" in extra:
                ledger.restore(extra["ledger"])
            if not logged:
                return 0, True
            self._known_history = self._history = int(extra["history"])
            self._begun = [int(extra["segment"])]
            return self._begun[0], True
        except (LookupError, TypeError, ValueError, FluidliteError) as error:
            raise CorruptFileError(f"checkpoint {restored.number}: its state cannot be read: {error!r}") from error

    def _begin(self, ledger: Ledger, number: int) -> Future[None]:
        """Cut now; write in the background, after the one that is being written. One that takes the place of another, or
        comes before it, builds on none."""
        assert self._writer is not None
        assert self._held is not None
        full = self._full_in <= 0 or self.is_writing or number <= self._number
        self._written, self._number = ledger.store.version, number
        self._assigned = self._left = False
        self._full_in = self._keeping.checkpoint_full_every - 1 if full else self._full_in - 1
        self.record(Settled())
        segment = self._journal.rotate() if self._journal is not None else 0
        extra = {"ledger": ledger.state(), "history": self._history, "segment": segment}
        since = None if full else self._writer.last
        cut = take_cut(self._held, number, since, lambda: extra, track=self._keeping.checkpoint_full_every > 1)
        for event in ledger.held():
            self.record(event)
        recorded = self._journal.given if self._journal is not None else 0
        self._writing = self._background.submit(self._write, cut, segment, recorded)
        return self._writing

    def _write(self, cut: Cut, segment: int, recorded: int) -> None:
        """``recorded``: the last of the events with which the segment begins. A checkpoint that is there without them would
        lose steps."""
        assert self._writer is not None
        try:
            try:
                self.wait(recorded)
            except FluidliteError:
                cut.close()
                raise
            self._writer.write(cut)
        except Exception as error:
            log.error("checkpoint %d is not written: %s", cut.number, error)
            raise
        if self._events is not None:
            self._forget(segment)

    def _forget(self, segment: int) -> None:
        """Remove the segments that no checkpoint kept back needs."""
        with self._lock:
            self._begun = [*self._begun, segment][-_KEPT_BACK:]
            oldest = self._begun[0] if len(self._begun) == _KEPT_BACK else 0
        for number in segments(self._folder):
            if number < oldest:
                segment_path(self._folder, number).unlink(missing_ok=True)

    def _checked_history(self, head: Mapping[str, Any]) -> int:
        """The history that a segment belongs to; CorruptFileError for one of another server."""
        if {key: head.get(key) for key in self._whose} != self._whose or not isinstance(head.get("history"), int):
            raise CorruptFileError(
                f"{self._events} holds the log of server {head.get('server')} of {head.get('servers')}, not of this one"
            )
        if self._known_history not in (None, head["history"]):
            raise CorruptFileError(
                f"{self._events} is of another history than the checkpoint in {self._keeping.checkpoint_dir}"
            )
        return int(head["history"])


def _failed(written: Future[None]) -> bool:
    return written.done() and written.exception() is not None
