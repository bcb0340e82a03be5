"""A server that is killed at any moment comes back from its log as it was."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluidlite.checkpoint.catalogue import Catalogue
from fluidlite.checkpoint.cut import Cut
from fluidlite.checkpoint.manifest import Manifest
from fluidlite.checkpoint.storage import open_folder
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.errors import (
    CorruptFileError,
    ForgottenError,
    LeaseLostError,
    RemoteError,
    RequestRefusedError,
    ServerFailedError,
    StaleError,
    UnwritableFileError,
)
from fluidlite.ops.keeping import Keeping
from fluidlite.protocol.messages import Decision, Gradient, Identity, Push, Registration, StepHeader, Value
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.journal import segment_path, segments
from fluidlite.pserver.keeper import Keeper
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.rpc.client import GrpcChannel
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.server import GrpcServer
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable
from tests.checkpoint_host import catalogue_of
from tests.fake_cluster import PATIENCE, DictStore, Dropping
from tests.pserver_program import pserver_program

TRAINERS = 3


def who(trainer: int, incarnation: int = 1) -> Identity:
    return Identity("job", trainer, incarnation)


def push(trainer: int, sequence: int, value: float, *, decided: bool = True, incarnation: int = 1) -> Push:
    gradients = [
        Gradient("", "w", np.full(3, value)),
        Gradient("", "emb", np.full((2, 2), value), np.array([sequence % 5, -(2**40)]), 10),
    ]
    return Push(StepHeader(who(trainer, incarnation), sequence, sequence, 0, 2), gradients, [], decided)


class Served:
    """A server with a log, which can be killed and made again. The store of a killed one is lost."""

    def __init__(self, folder: Path, sync: bool = True, trainers: int = TRAINERS) -> None:
        self.folder, self.sync, self.trainers = folder, sync, trainers
        self.start()

    def start(self) -> None:
        self.store = DictStore()
        self.keeper = Keeper(Keeping(log_dir=str(self.folder)), 0, 1)
        self.server = PServer(self.store, trainers=self.trainers, sync=self.sync, keeper=self.keeper)

    def kill(self) -> None:
        """What was not written by now would be lost; whoever was answered waited for that."""
        self.keeper.close()
        self.start()

    def register(self, trainer: int, incarnation: int = 1) -> Any:
        return self.server.register(Registration(who(trainer, incarnation), self.trainers))

    def remembered(self) -> tuple[Any, ...]:
        rows = {id: tuple(row) for id, row in self.store.rows.items()}
        return tuple(self.store.values["w"]), rows, self.store.version, self.store.applied, _state(self.server)


def _state(server: PServer) -> dict[str, Any]:
    """What the ledger remembers; whose trainers may come is decided anew."""
    state = server._ledger.state()
    del state["members"]["job"]
    return state


@pytest.fixture
def served(tmp_path: Path) -> Served:
    made = Served(tmp_path)
    for trainer in range(TRAINERS):
        made.register(trainer)
    return made


def test_applied_steps_come_back_and_count_once(served: Served) -> None:
    answers = [served.server.commit(push(trainer, 0, trainer + 1.0)) for trainer in range(TRAINERS)]
    assert [answer().version for answer in answers] == [1] * TRAINERS
    before = served.remembered()
    served.kill()
    assert served.remembered() == before
    assert served.server.commit(push(1, 0, 2.0))().version == 1, "a retried step gets its answer and changes nothing"
    assert served.remembered() == before


def test_an_answer_waits_for_the_records_of_all_that_closed_its_round(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = served.server.commit(push(0, 0, 1.0))
    waited: list[int] = []
    monkeypatch.setattr(served.keeper, "wait", waited.append)
    for trainer in (1, 2):
        served.server.commit(push(trainer, 0, 1.0))
    first()
    assert waited == [served.server._recorded], "else a killed server forgets a round that somebody was told of"


def test_a_round_that_is_open_stays_open(served: Served) -> None:
    served.server.commit(push(0, 0, 1.0))
    served.server.commit(push(2, 0, 4.0))
    served.kill()
    assert served.store.version == 0
    assert served.server.commit(push(1, 0, 1.0))().version == 1
    np.testing.assert_array_equal(served.store.values["w"], [-2.0] * 3)


def test_an_accepted_step_waits_for_its_decision_across_a_restart(served: Served) -> None:
    served.server.commit(push(0, 0, 1.0, decided=False))()
    served.kill()
    assert served.register(0, incarnation=2).undecided == 0
    with pytest.raises(StaleError, match="newer incarnation"):
        served.server.decide(Decision(who(0), 0, apply=True))
    answer = served.server.decide(Decision(who(0, 2), 0, apply=True))
    assert served.register(0, incarnation=2).next_sequence == 1
    for trainer in (1, 2):
        served.server.commit(push(trainer, 0, 1.0))
    assert answer().version == 1


def test_a_step_that_is_taken_back_leaves_nothing(served: Served) -> None:
    served.server.commit(push(0, 0, 8.0, decided=False))()
    served.server.decide(Decision(who(0), 0, apply=False))()
    served.server.decide(Decision(who(0), 0, apply=False))()
    with pytest.raises(ForgottenError, match="not among those accepted"):
        served.server.decide(Decision(who(0), 0, apply=True))
    served.kill()
    answers = [served.server.commit(push(trainer, 0, 1.0)) for trainer in range(TRAINERS)]
    assert answers[0]().version == 1
    with pytest.raises(RequestRefusedError, match="cannot be taken back"):
        served.server.decide(Decision(who(0), 0, apply=False))
    np.testing.assert_array_equal(served.store.values["w"], [-1.0] * 3)


def test_the_history_stays_and_is_another_one_elsewhere(
    served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    history = served.register(0).history
    served.kill()
    assert served.register(0).history == history
    assert Served(tmp_path_factory.mktemp("other")).register(0).history != history


def test_a_log_of_another_server_is_refused(served: Served, tmp_path: Path) -> None:
    served.keeper.close()
    (tmp_path / "server-0-of-1").rename(tmp_path / "server-0-of-2")
    with pytest.raises(CorruptFileError, match="server 0 of 1"):
        PServer(DictStore(), trainers=TRAINERS, sync=True, keeper=Keeper(Keeping(log_dir=str(tmp_path)), 0, 2))


def test_a_damaged_log_is_refused_and_an_unfinished_one_is_taken(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for sequence in range(3):
        for trainer in range(TRAINERS):
            served.server.commit(push(trainer, sequence, 1.0))
    served.keeper.close()
    path = segment_path(tmp_path / "server-0-of-1", 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with caplog.at_level(logging.WARNING, logger="fluidlite"):
        served.start()
    assert "unfinished" in caplog.text
    assert served.store.version == 2, "the last step of the last round was not acknowledged"
    served.keeper.close()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with pytest.raises(CorruptFileError, match="damaged"):
        served.start()


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class Killed(RuleBasedStateMachine):
    """Whatever happened, and whenever the server is killed: it comes back as it was."""

    sync = True

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.served = Served(Path(self._folder.name), self.sync)
        self.incarnations = dict.fromkeys(range(TRAINERS), 0)
        self.next = dict.fromkeys(range(TRAINERS), 0)

    def attempt(self, call: Any) -> None:
        with contextlib.suppress(RemoteError):
            call()

    @rule(trainer=st.integers(0, TRAINERS - 1), newer=st.booleans())
    def come(self, trainer: int, newer: bool) -> None:
        self.incarnations[trainer] += newer
        self.attempt(lambda: self.served.register(trainer, self.incarnations[trainer]))

    @rule(trainer=st.integers(0, TRAINERS - 1), value=st.integers(-8, 8), decided=st.booleans(), again=st.booleans())
    def commit(self, trainer: int, value: int, decided: bool, again: bool) -> None:
        sequence = max(0, self.next[trainer] - again)
        sent = push(trainer, sequence, float(value), decided=decided, incarnation=self.incarnations[trainer])
        self.attempt(lambda: self.served.server.commit(sent))
        self.next[trainer] = sequence + 1

    @rule(trainer=st.integers(0, TRAINERS - 1), apply=st.booleans(), back=st.integers(1, 2))
    def decide(self, trainer: int, apply: bool, back: int) -> None:
        identity = who(trainer, self.incarnations[trainer])
        self.attempt(lambda: self.served.server.decide(Decision(identity, self.next[trainer] - back, apply)))

    @rule(trainer=st.integers(0, TRAINERS - 1))
    def arrive(self, trainer: int) -> None:
        member = self.served.server._members._members.get(trainer)
        number = member.barriers if member is not None else 0
        identity = who(trainer, self.incarnations[trainer])
        self.attempt(lambda: self.served.server.barrier(identity, number))

    @rule(trainer=st.integers(0, TRAINERS - 1), rows=st.booleans())
    def assign(self, trainer: int, rows: bool) -> None:
        value: Value = SelectedRows(np.array([7]), np.ones((1, 2)), 10) if rows else np.array([1.0, 2.0, 3.0])
        identity = who(trainer, self.incarnations[trainer])
        self.attempt(lambda: self.served.server.assign(identity, "emb" if rows else "w", value))

    @precondition(lambda self: len(self.served.server.live) > 1)
    @rule(data=st.data(), done=st.booleans())
    def leave(self, data: st.DataObject, done: bool) -> None:
        trainer = data.draw(st.sampled_from(self.served.server.live))
        identity = who(trainer, self.incarnations[trainer])
        if done:
            self.attempt(lambda: self.served.server.complete(identity))
        else:
            with contextlib.suppress(LeaseLostError, StaleError):
                self.served.server._members.suspect(identity)
                member = self.served.server._members._members.get(trainer)
                if member is not None:
                    member.lease_ends = float("-inf")
                self.served.server.poll(0.0)

    @rule()
    def kill(self) -> None:
        before, live = self.served.remembered(), self.served.server.live
        self.served.kill()
        after = self.served.remembered()
        assert after[:4] == before[:4]
        if live:
            assert after[4] == before[4]

    @invariant()
    def steps_count_once(self) -> None:
        counted = sum(len(trainers) for trainers, _ in self.served.store.applied)
        assert counted <= sum(self.next.values())

    def teardown(self) -> None:
        self.served.keeper.close()
        self._folder.cleanup()


class KilledAsync(Killed):
    sync = False


TestKilled = Killed.TestCase
TestKilledAsync = KilledAsync.TestCase


# --- with checkpoints -------------------------------------------------------------------------------------------------


class Hosted:
    """A server of a real program that keeps checkpoints and a log, and can be killed and made again."""

    def __init__(self, folder: Path, **keeping: Any) -> None:
        self.keeping = Keeping(checkpoint_dir=str(folder / "checkpoints"), log_dir=str(folder / "log"), **keeping)
        self.start()

    def start(self, keeping: Keeping | None = None) -> None:
        program, listen, self.scope = pserver_program(sync=False, trainers=2)
        self.host = Host(program, listen, self.scope)
        self.keeper = Keeper(keeping or self.keeping, 0, 1, self.host)
        self.server = make_service(self.host, keeper=self.keeper)
        for trainer in range(2):
            self.server.register(Registration(who(trainer, 5), 2))

    def kill(self, keeping: Keeping | None = None) -> None:
        self.keeper.close()
        self.start(keeping)

    def step(self, trainer: int, sequence: int) -> int:
        draw = np.random.default_rng([trainer, sequence])
        ids = draw.integers(-20, 20, 6)
        gradients = [
            Gradient("", "w@GRAD", draw.standard_normal(3)),
            Gradient("", "emb@GRAD", draw.standard_normal((6, 2)), ids, 10),
        ]
        header = StepHeader(who(trainer, 5), sequence, sequence, 0, 2)
        return self.server.commit(Push(header, gradients, []))().version

    def values(self) -> dict[str, Any]:
        """Everything, tables by id with all their columns."""
        found: dict[str, Any] = {"version": self.host.version}
        for name, value in self.scope.values.items():
            if isinstance(value, SparseTable):
                order = np.argsort(value.ids)
                found[name] = (value.ids[order].tobytes(), value.export().value[order].tobytes())
                for column in value.columns:
                    found[column.name] = value.export_column(column).value[order].tobytes()
            elif isinstance(value, np.ndarray):
                found[name] = value.tobytes()
        return found


def _undisturbed(tmp_path: Path, steps: int) -> dict[str, Any]:
    peaceful = Hosted(tmp_path / "peace")
    for sequence in range(steps):
        for trainer in range(2):
            peaceful.step(trainer, sequence)
    values = peaceful.values()
    peaceful.keeper.close()
    return values


@pytest.mark.parametrize("every", [0, 1, 7])
def test_K19_checkpoints_and_log_together_make_the_server_again(tmp_path: Path, every: int) -> None:
    wanted = _undisturbed(tmp_path, 25)
    hosted = Hosted(tmp_path / "war", checkpoint_every=every, checkpoint_full_every=3)
    for sequence in range(25):
        for trainer in range(2):
            version = hosted.step(trainer, sequence)
            if sequence % 4 == trainer:
                hosted.kill()
            assert hosted.step(trainer, sequence) == version, "repeated after the restart: the stored answer"
    assert hosted.values() == wanted
    hosted.keeper.close()
    if every:
        assert len(segments(tmp_path / "war" / "log" / "server-0-of-1")) <= 3, "what checkpoints hold is forgotten"


@settings(max_examples=25, deadline=None)
@given(
    do=st.lists(st.sampled_from(["step", "ask", "ask again", "assign", "kill"]), max_size=30),
    every=st.sampled_from([0, 2]),
    ahead=st.integers(0, 3),
)
def test_a_server_that_is_asked_for_checkpoints_at_any_time_comes_back(do: list[str], every: int, ahead: int) -> None:
    """``ahead``: another server's version is higher, and numbers the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        hosted = Hosted(Path(folder), checkpoint_every=every, checkpoint_full_every=3, checkpoint_keep_max=2)
        sequence = number = 0
        for what in do:
            if what == "step":
                hosted.step(0, sequence)
                sequence += 1
            elif what == "assign":
                hosted.server.assign(who(0, 5), "w", np.full(3, float(sequence)))
            elif what == "kill":
                before = hosted.values()
                hosted.kill()
                assert hosted.values() == before
            else:
                number = max(number, hosted.host.version + ahead) if what == "ask" else number
                assert hosted.server.checkpoint(who(0, 5), number)() == hosted.host.version
                catalogue = Catalogue(open_folder(str(Path(folder) / "checkpoints")))
                found = [c for c in catalogue.whole() if c.number == number]
                assert not found or not catalogue.problems(found[-1])
        hosted.keeper.close()
        for checkpoint in Catalogue(open_folder(str(Path(folder) / "checkpoints"))).checkpoints:
            assert not Catalogue(open_folder(str(Path(folder) / "checkpoints"))).problems(checkpoint)


def test_what_is_wrong_with_a_wish_for_a_checkpoint(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path)
    for number in (-1, 10**18):
        with pytest.raises(RequestRefusedError, match="has a number from 0 to"):
            hosted.server.checkpoint(who(0, 5), number)
    with pytest.raises(RequestRefusedError, match="keeps its checkpoints in"):
        hosted.server.checkpoint(who(0, 5), 1, "elsewhere")
    with pytest.raises(StaleError):
        hosted.server.checkpoint(who(0, 4), 1)
    assert not (tmp_path / "checkpoints").exists()
    hosted.keeper.close()


def test_a_wish_whose_answer_gets_lost_is_met_once(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path)
    server = GrpcServer(hosted.server, "127.0.0.1:0", trainers=2)
    lossy: list[Dropping] = []

    def connect(endpoint: str) -> Any:
        lossy.append(Dropping(GrpcChannel(endpoint, PATIENCE), "checkpoint", requests=1, replies=1))
        return lossy[-1]

    port = TrainerPort(connect, trainer=0, patience=PATIENCE)
    try:
        port.stage(Gradient(server.endpoint, "w@GRAD", np.ones(3)))
        port.commit([server.endpoint])
        assert port.checkpoint([server.endpoint]) == 1
        assert (lossy[0].requests, lossy[0].replies) == (0, 0)
        assert len(list((tmp_path / "checkpoints").glob("*/*.dense"))) == 1
    finally:
        port.close()
        server.close()


def test_a_damaged_checkpoint_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = _undisturbed(tmp_path, 12)
    hosted = Hosted(tmp_path / "war", checkpoint_every=5, checkpoint_full_every=1)
    for sequence in range(12):
        for trainer in range(2):
            hosted.step(trainer, sequence)
    hosted.keeper.close()
    last = max((tmp_path / "war" / "checkpoints").iterdir())
    for file in last.iterdir():
        if file.suffix != ".json":
            file.write_bytes(file.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="fluidlite"):
        hosted.start()
    assert "is not used" in caplog.text
    assert hosted.values() == wanted


def test_K16_a_checkpoint_that_is_due_while_one_is_written_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go = CheckpointWriter.write, threading.Event()

    def slow(writer: CheckpointWriter, cut: Cut) -> Manifest:
        assert go.wait(60)
        return write(writer, cut)

    monkeypatch.setattr(CheckpointWriter, "write", slow)
    hosted = Hosted(tmp_path, checkpoint_every=1, checkpoint_full_every=3)
    for sequence in range(3):
        hosted.step(0, sequence)
    assert hosted.keeper.is_writing
    values = hosted.values()
    go.set()
    hosted.kill()
    assert [c.number for c in catalogue_of(tmp_path / "checkpoints").checkpoints] == [1, 2, 3]
    assert hosted.values() == values
    hosted.keeper.close()


def test_a_full_log_asks_for_a_checkpoint(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path, log_limit=1)
    sequence = 0
    while not hosted.keeper._begun:
        hosted.step(0, sequence)
        sequence += 1
        assert sequence < 20_000
    before = hosted.values()
    hosted.kill()
    assert hosted.values() == before
    hosted.keeper.close()


def test_without_a_log_the_last_checkpoint_counts(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path, checkpoint_every=4)
    hosted.keeping = replace(hosted.keeping, log_dir="")
    hosted.kill()
    for sequence in range(6):
        hosted.step(0, sequence)
        if sequence == 3:
            at_four = hosted.values()
    hosted.kill()
    assert hosted.values() == at_four


def test_the_end_is_a_checkpoint(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path)
    for sequence in range(3):
        hosted.step(0, sequence)
    before = hosted.values()
    hosted.server.stop("the test is over")
    hosted.server.close()
    hosted.start(replace(hosted.keeping, log_dir=""))
    assert hosted.values() == before
    hosted.keeper.close()


def test_a_server_that_is_started_again_still_knows_the_trainers_that_were_done(served: Served, tmp_path: Path) -> None:
    for trainer in range(TRAINERS):
        served.server.commit(push(trainer, 0, 1.0))
    for trainer in range(TRAINERS):
        served.server.complete(who(trainer))
    served.keeper.close()
    for again, counted in ((True, 1), (False, 1)):
        keeper = Keeper(Keeping(log_dir=str(tmp_path)), 0, 1, again=again)
        server = PServer(DictStore(), trainers=TRAINERS, sync=True, keeper=keeper, options=ServiceOptions(stays=True))
        assert not server.poll(0.0)
        welcome = server.register(Registration(who(1, incarnation=2), TRAINERS))
        assert welcome.next_sequence == counted
        server.close()


def test_where_all_were_done_another_job_may_come_and_is_remembered(served: Served) -> None:
    for trainer in range(TRAINERS):
        served.server.commit(push(trainer, 0, 1.0))
    for trainer in range(TRAINERS):
        served.server.complete(who(trainer))
    served.kill()
    for _ in range(2):
        assert served.register(0, incarnation=7).next_sequence == 0
        assert served.store.version == 1, "what was trained stays"
        served.kill()
    served.server.commit(push(0, 0, 1.0, incarnation=7))
    served.kill()
    assert served.register(0, incarnation=8).next_sequence == 1


def test_a_checkpoint_that_another_builds_on_is_not_written_anew(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path, checkpoint_every=2, checkpoint_full_every=3)
    hosted.step(0, 0)
    hosted.server.checkpoint(who(0, 5), 1)()
    hosted.step(0, 1)
    hosted.server.checkpoint(who(0, 5), 2)()
    hosted.server.checkpoint(who(0, 5), 1)()
    hosted.keeper.close()
    catalogue = Catalogue(open_folder(str(tmp_path / "checkpoints")))
    assert [c.number for c in catalogue.checkpoints] == [1, 2]
    assert [catalogue.problems(checkpoint) for checkpoint in catalogue.checkpoints] == [[], []]


def test_a_log_is_for_one_server_at_a_time(served: Served, tmp_path: Path) -> None:
    second = Keeper(Keeping(log_dir=str(tmp_path)), 0, 1)
    with pytest.raises(UnwritableFileError, match="is that of a server which is running"):
        PServer(DictStore(), trainers=TRAINERS, sync=True, keeper=second)
    served.kill()


def test_a_server_whose_log_cannot_be_written_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.writev", full)
    served.server.commit(push(0, 0, 1.0, decided=False))
    with pytest.raises(ServerFailedError, match="No space left"):
        served.register(0, incarnation=2)
    assert served.server.poll(0.0)
    with pytest.raises(ServerFailedError, match="No space left"):
        served.server.close()


def test_other_files_beside_segments_are_none(served: Served, tmp_path: Path) -> None:
    (tmp_path / "server-0-of-1" / "events.0000001").write_bytes(b"")
    served.kill()
    assert served.store.version == 0
