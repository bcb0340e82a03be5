"""What may go wrong between a log, its checkpoints and several servers, and must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.checkpoint.cut import Cut
from fluidlite.checkpoint.manifest import Manifest
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.errors import CorruptFileError, PeerLostError, RemoteError, ServerFailedError, UnwritableFileError
from fluidlite.ops.keeping import Keeping
from fluidlite.ports import make_process_service
from fluidlite.protocol.messages import (
    Decision,
    DenseRequest,
    Gradient,
    Identity,
    Push,
    Registration,
    StepHeader,
)
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.journal import Journal, segments
from fluidlite.pserver.keeper import Keeper
from fluidlite.pserver.members import Members
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.pserver.window import Window
from fluidlite.rpc.retry import Patience
from tests.fake_cluster import TRANSPORTS, DictStore, Dropping, FakeCluster
from tests.pserver_program import pserver_program

TRAINERS = 2


def who(trainer: int, incarnation: int = 1) -> Identity:
    return Identity("job", trainer, incarnation)


class Kept:
    """A server of a real program in sync mode, with log and checkpoints, that can be killed and made again."""

    def __init__(self, folder: Path, **keeping: Any) -> None:
        self.log = folder / "log" / "server-0-of-1"
        self.checkpoints = folder / "checkpoints"
        self.keeping = Keeping(checkpoint_dir=str(self.checkpoints), log_dir=str(folder / "log"), **keeping)
        self.start()
        for trainer in range(TRAINERS):
            self.server.register(Registration(who(trainer), TRAINERS))

    def start(self) -> None:
        program, listen, self.scope = pserver_program(sync=True, trainers=TRAINERS)
        self.host = Host(program, listen, self.scope)
        self.keeper = Keeper(self.keeping, 0, 1, self.host)
        self.server = make_service(self.host, keeper=self.keeper)

    def kill(self) -> None:
        self.keeper.close()
        self.start()

    def push(self, trainer: int, sequence: int, *, decided: bool = True) -> Any:
        gradients = [
            Gradient("", "w@GRAD", np.full(3, trainer + 1.0)),
            Gradient("", "emb@GRAD", np.ones((2, 2)), np.array([sequence, -7]), 10),
        ]
        return self.server.commit(Push(StepHeader(who(trainer), sequence, sequence, 0, 2), gradients, [], decided))

    @property
    def weight(self) -> bytes:
        return bytes(np.asarray(self.scope.get("w")).tobytes())


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "kept")
    yield made
    made.keeper.close()


def _undisturbed(folder: Path, rounds: int) -> bytes:
    peaceful = Kept(folder)
    for sequence in range(rounds):
        answers = [peaceful.push(trainer, sequence) for trainer in range(TRAINERS)]
        assert [answer().version for answer in answers] == [sequence + 1] * TRAINERS
    peaceful.keeper.close()
    return peaceful.weight


def test_a_step_that_waits_counts_once_when_the_checkpoint_behind_it_is_not_there(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the checkpoint was written: the step is in the log twice, where it came, and where a segment began."""

    def killed(writer: CheckpointWriter, cut: Cut) -> Manifest:
        raise UnwritableFileError("killed")

    kept.push(0, 0)
    kept.push(1, 0, decided=False)()
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointWriter, "write", killed)
        for number in range(2):
            with pytest.raises(ServerFailedError, match="not written"):
                kept.server.checkpoint(who(0), number)()
    assert segments(kept.log) == [0, 1, 2]
    for _ in range(2):
        kept.kill()
        assert len(list(kept.server._ledger.held())) == 2
    assert kept.server.decide(Decision(who(1), 0, apply=True))().version == 1
    assert not list(kept.server._ledger.held())
    answers = [kept.push(trainer, 1) for trainer in range(TRAINERS)]
    assert [answer().version for answer in answers] == [2, 2]
    assert kept.weight == _undisturbed(tmp_path / "peace", 2)


def test_a_checkpoint_is_published_behind_what_waits_in_its_segment(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server killed between the two has neither the old segment's steps nor the new one's."""
    write, slow = Journal._write, threading.Event()
    publish, behind = CheckpointWriter.write, []

    def written_late(journal: Journal, item: Any) -> None:
        if isinstance(item, int):
            assert slow.wait(60)
        write(journal, item)

    def published(writer: CheckpointWriter, cut: Cut) -> Manifest:
        behind.append(slow.is_set())
        return publish(writer, cut)

    monkeypatch.setattr(Journal, "_write", written_late)
    monkeypatch.setattr(CheckpointWriter, "write", published)
    kept.push(0, 0)
    written = kept.server.checkpoint(who(0), 0)
    slow.set()
    written()
    assert behind == [True]
    kept.kill()
    assert len(list(kept.server._ledger.held())) == 1


def test_a_log_that_fails_makes_no_checkpoint_of_what_it_lacks(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(journal: Journal, item: Any) -> None:
        raise OSError(28, "No space left on device")

    answer = kept.push(0, 0)
    kept.push(1, 0)
    answer()
    before = kept.weight
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write", full)
        answer, _ = [kept.push(trainer, 1) for trainer in range(TRAINERS)]
        with pytest.raises(ServerFailedError, match="No space left"):
            answer()
        with pytest.raises(ServerFailedError, match="not written"):
            kept.server.checkpoint(who(0), 1)()
        kept.kill()
    assert kept.weight == before, "the round that failed did not count"


def test_a_damaged_base_of_all_checkpoints_is_an_error_and_no_loss_in_silence(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for sequence in range(4):
        for trainer in range(TRAINERS):
            kept.push(trainer, sequence)
        kept.server.checkpoint(who(0), sequence)()
    kept.keeper.close()
    for file in min(kept.checkpoints.iterdir()).glob("*.rows"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="lacks the events"):
        kept.start()


def test_a_segment_that_was_never_begun_is_no_segment(kept: Kept) -> None:
    """Killed, or out of space, between the making of the file and its first bytes."""
    kept.push(0, 0)
    kept.keeper.close()
    head = (kept.log / "events.000000").read_bytes()[:60]
    for size in (0, 5, 8, 30, 60):
        (kept.log / "events.000001").write_bytes(head[:size])
        kept.start()
        assert len(list(kept.server._ledger.held())) == 1
        kept.keeper.close()
        assert segments(kept.log) == [0]


def test_what_was_assigned_before_a_kill_is_in_the_last_checkpoint(kept: Kept) -> None:
    kept.server.checkpoint(who(0), 0)()
    kept.server.assign(who(0), "w", np.full(3, 7.0))
    kept.kill()
    weight = kept.weight
    kept.server.stop("the job is over")
    kept.server.close()
    kept.keeping = replace(kept.keeping, log_dir="")
    kept.start()
    assert kept.weight == weight


def test_a_server_whose_last_checkpoint_failed_says_so_and_tries_again(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a launcher takes the job's end for a good one, and removes the log that has what the checkpoint lacks."""

    def full(writer: CheckpointWriter, cut: Cut) -> Manifest:
        cut.close()
        raise UnwritableFileError("No space left")

    for trainer in range(TRAINERS):
        kept.push(trainer, 0)
    weight = kept.weight
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointWriter, "write", full)
        kept.server.stop("the job is over")
        with pytest.raises(UnwritableFileError, match="No space left"):
            kept.server.close()
    kept.start()
    kept.server.stop("the job is over")
    kept.server.close()
    kept.keeping = replace(kept.keeping, log_dir="")
    kept.start()
    assert kept.weight == weight


def test_a_new_job_is_waited_for_as_long_as_it_takes() -> None:
    """That trainers of the job before came is no reason to give those up that never did."""
    now = [0.0]
    members = Members(2, 30.0, 2.0, lambda: now[0], arrival=600.0)
    for trainer in range(2):
        members.register(who(trainer))
        members.complete(trainer)
    members.begin_anew()
    members.clear()
    now[0] = 10_000.0
    assert members.overdue(now[0]) == []


def test_a_log_of_another_history_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    one, other = Kept(tmp_path / "one"), Kept(tmp_path / "other")
    for made in (one, other):
        made.push(0, 0)
        made.server.checkpoint(who(0), 3)()
        made.keeper.close()
    for path in one.log.iterdir():
        path.write_bytes((other.log / path.name).read_bytes())
    with pytest.raises(CorruptFileError, match="another history"):
        one.start()


# --- answers ----------------------------------------------------------------------------------------------------------


class Logged:
    """A server with a log that writes only when told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
        keeper = Keeper(Keeping(log_dir=str(folder)), 0, 1)
        self.server = PServer(DictStore(), trainers=TRAINERS, sync=sync, keeper=keeper)
        for trainer in range(TRAINERS):
            self.server.register(Registration(who(trainer), TRAINERS))
        self.waited: list[int] = []
        monkeypatch.setattr(keeper, "wait", self.waited.append)

    def push(self, trainer: int, sequence: int, *wanted: str, decided: bool = True) -> Any:
        header = StepHeader(who(trainer), sequence, sequence, 0, 1)
        return self.server.commit(Push(header, [Gradient("", "w", np.ones(3))], wanted, decided))


def test_a_pull_waits_for_the_records_of_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path, monkeypatch, sync=False)
    logged.push(0, 0)
    assert logged.server.pull(who(1), [DenseRequest("", "w")]).version == 1
    assert logged.waited == [logged.server._recorded]
    logged.server.close()


def test_the_dense_values_of_an_answer_are_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path, monkeypatch, sync=False)
    answer = logged.push(0, 0, "w")
    dense, recorded = logged.server._store.dense, []

    def later(names: Any) -> Any:
        logged.push(1, 0)
        recorded.append(logged.server._recorded)
        return dense(names)

    monkeypatch.setattr(logged.server._store, "dense", later)
    assert answer().dense["w"].tolist() == [-2.0] * 3
    assert logged.waited == recorded
    logged.server.close()


def test_a_barrier_opens_once_all_arrivals_are_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path, monkeypatch, sync=True)
    first = logged.server.barrier(who(0), 0)
    logged.server.barrier(who(1), 0)
    first()
    assert logged.waited == [logged.server._recorded]
    logged.server.close()


def test_who_waits_for_a_closed_log_is_told(tmp_path: Path) -> None:
    logged = Keeper(Keeping(log_dir=str(tmp_path)), 0, 1)
    server = PServer(DictStore(), trainers=1, sync=True, keeper=logged)
    server.register(Registration(who(0), 1))
    server.stop("the test is over")
    server.close()
    with pytest.raises(ServerFailedError, match="closed"):
        server.complete(who(0))


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [True, False])
def test_a_step_that_stays_undecided_falls_out_of_the_window_and_is_forgotten(tmp_path: Path, leaves: bool) -> None:
    def start() -> PServer:
        return PServer(DictStore(), trainers=TRAINERS, sync=False, keeper=Keeper(Keeping(log_dir=str(tmp_path)), 0, 1))

    server = start()
    for trainer in range(TRAINERS):
        server.register(Registration(who(trainer), TRAINERS))
    gradient = Gradient("", "w", np.ones(3))
    server.commit(Push(StepHeader(who(0), 0, 0, 0, 1), [gradient], [], decided=False))()
    for sequence in range(1, Window.SIZE + 2):
        server.commit(Push(StepHeader(who(0), sequence, sequence, 0, 1), [gradient], []))()
    assert not list(server._ledger.held())
    if leaves:
        server.complete(who(0))
    server.close()
    again = start()
    assert again._store.version == Window.SIZE + 1
    assert again._ledger.state()["members"]["members"] == server._ledger.state()["members"]["members"]
    again.close()


def test_a_window_knows_what_counts_beyond_a_step_that_does_not() -> None:
    window = Window()
    for sequence in range(3):
        window.open(sequence)
    for sequence in (1, 2):
        window.decide(sequence).settle(sequence)
    again = Window()
    again.restore(window.state())
    again.open(0)
    assert (again.next, again.undecided) == (3, 0), "else a new incarnation takes the numbers of steps that count"


def test_a_merged_step_counts_for_all_its_steps() -> None:
    service = PServer(DictStore(), trainers=1, sync=False)
    service.register(Registration(who(0), 1))
    merged = Push(StepHeader(who(0), 0, 0, 0, 0, steps=2 * Window.SIZE), [], [])
    for _ in range(2):
        assert service.commit(merged)().version == 1, "it is still known, however many steps it stands for"
    assert service.register(Registration(who(0, 2), 1)).next_sequence == 2 * Window.SIZE


# --- several servers --------------------------------------------------------------------------------------------------


@pytest.fixture(params=TRANSPORTS)
def cluster(request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    made = FakeCluster(request.param, servers=2, sync=False, options=ServiceOptions(grace=0.0, stays=True))
    yield made
    made.close()


IMPATIENT = Patience(connect=1.0, retry=0.05)


def test_a_step_that_was_taken_back_elsewhere_never_counts_on_a_server_that_did_not_hear_of_it(
    cluster: FakeCluster,
) -> None:
    """The second server accepts, but its answers get lost: so does what is to take the step back."""
    ways: dict[int, Any] = {}

    def wrap(channel: Any) -> Any:
        return ways.setdefault(len(ways), Dropping(channel, "commit"))

    before = cluster.port(incarnation=1, wrap=wrap, patience=IMPATIENT)
    cluster.push(before)
    ways[1].replies = 10**9
    with pytest.raises(PeerLostError):
        cluster.push(before, 100.0)
    assert cluster.services[1]._ledger.members.member(0).window.undecided == 1
    ways[1].replies = 0
    cluster.push(before)
    assert cluster.services[1]._ledger.members.member(0).window.undecided is None
    again = cluster.port(incarnation=2)
    again.declare({endpoint: [] for endpoint in cluster.endpoints})
    again.resume()
    for store in cluster.stores:
        np.testing.assert_array_equal(store.values["w"], [-2.0] * 3)


def test_a_decision_that_a_server_did_not_hear_comes_before_the_next_step(cluster: FakeCluster) -> None:
    ways: dict[int, Any] = {}

    def wrap(channel: Any) -> Any:
        return ways.setdefault(len(ways), Dropping(channel, "decide"))

    port = cluster.port(wrap=wrap, patience=IMPATIENT)
    cluster.push(port)
    ways[1].requests = 10**9
    with pytest.raises(PeerLostError):
        cluster.push(port, 2.0)
    assert [store.version for store in cluster.stores] == [2, 1]
    ways[1].requests = 0
    cluster.push(port)
    for store in cluster.stores:
        assert store.version == 3
        np.testing.assert_array_equal(store.values["w"], [-4.0] * 3)


@pytest.mark.parametrize(("verb", "counted"), [("commit", 1), ("decide", 2)])
def test_a_step_that_was_interrupted_counts_on_all_or_none(cluster: FakeCluster, verb: str, counted: int) -> None:
    ways: dict[int, Any] = {}

    class Interrupted(Dropping):
        now = False

        def __getattr__(self, name: str) -> Any:
            if name == self._verb and self.now:
                self.now = False
                raise KeyboardInterrupt
            return getattr(self._channel, name)

    before = cluster.port(incarnation=1, wrap=lambda channel: ways.setdefault(len(ways), Interrupted(channel, verb)))
    cluster.push(before)
    ways[1].now = True
    with pytest.raises(KeyboardInterrupt):
        cluster.push(before, 2.0)
    cluster.push(before)
    again = cluster.port(incarnation=2)
    again.declare({endpoint: [] for endpoint in cluster.endpoints})
    assert again.resume() == 3
    for store in cluster.stores:
        assert store.version == counted + 1
        np.testing.assert_array_equal(store.values["w"], [-2.0 * counted] * 3)


def test_what_was_decided_at_first_contact_is_not_decided_again_when_more_servers_come(cluster: FakeCluster) -> None:
    before = cluster.port(incarnation=1)
    peer = before._peers.met(cluster.endpoints[0])
    gradient = Gradient(peer.endpoint, "w", np.ones(3))
    peer.channel.commit(Push(StepHeader(before.identity, 0, 0, 0, 1), [gradient], [], decided=False))()
    again = cluster.port(incarnation=2)
    again.declare({cluster.endpoints[0]: []})
    assert again.resume() == 0
    for value in (1.0, 1.0):
        again.stage(Gradient(cluster.endpoints[0], "w", np.full(3, value)))
        again.commit(cluster.endpoints[:1])
    assert cluster.push(again) == {cluster.endpoints[0]: 3, cluster.endpoints[1]: 1}


def test_pushes_that_merge_steps_are_numbered_by_steps(cluster: FakeCluster) -> None:
    """So a trainer that is started again leaves out the batches that count, not as many as there were pushes."""
    port = cluster.port()
    for steps in (3, 4):
        port.commit(cluster.endpoints, steps=steps)
    again = cluster.port(incarnation=port.identity.incarnation + 1)
    again.declare({endpoint: [] for endpoint in cluster.endpoints})
    assert dict(port.commit(cluster.endpoints, steps=2).versions) == dict.fromkeys(cluster.endpoints, 3)
    assert again.resume() == 9


def test_steps_of_many_threads_stay_within_the_window(cluster: FakeCluster) -> None:
    """The decision of one thread's step gets lost, and others go on."""
    lost = {"left": 1}

    class Losing(Dropping):
        def __getattr__(self, name: str) -> Any:
            self.requests, lost["left"] = (lost["left"], 0) if name == self._verb else (0, lost["left"])
            return super().__getattr__(name)

    port = cluster.port(wrap=lambda channel: Losing(channel, "decide"))
    for endpoint in cluster.endpoints:
        port.stage(Gradient(endpoint, "w", np.ones(3)))
    first = port.commit(cluster.endpoints)

    def others() -> None:
        for _ in range(Window.SIZE + 8):
            cluster.push(port)

    cluster.run(others).result(60)
    first.versions  # noqa: B018
    assert [store.version for store in cluster.stores] == [Window.SIZE + 9] * 2


def test_a_step_that_was_too_old_takes_no_number(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again is the same step: a trainer that is started again leaves out as many batches as count."""
    port = cluster.port()
    cluster.push(port)
    policy, refused = cluster.services[1]._ledger.policy, [True, True]

    def check(trainer: int, seen: int, version: int) -> str | None:
        return "too old" if refused and refused.pop() else None

    monkeypatch.setattr(policy, "check", check, raising=False)
    for _ in range(2):
        with pytest.raises(RemoteError, match="too old"):
            cluster.push(port, 9.0)
    cluster.push(port)
    again = cluster.port(incarnation=port.identity.incarnation + 1)
    again.declare({endpoint: [] for endpoint in cluster.endpoints})
    assert again.resume() == 2
    np.testing.assert_array_equal(cluster.stores[0].values["w"], [-2.0] * 3)


def test_a_trainer_that_is_given_up_between_the_phases_still_counts_everywhere(cluster: FakeCluster) -> None:
    ways: dict[int, Any] = {}

    class GivenUp(Dropping):
        now = False

        def __getattr__(self, name: str) -> Any:
            if name == "decide" and self.now:
                self.now = False
                cluster.services[1].disconnected(port.identity)
            return getattr(self._channel, name)

    port = cluster.port(wrap=lambda channel: ways.setdefault(len(ways), GivenUp(channel, "")))
    cluster.push(port)
    ways[1].now = True
    assert cluster.push(port) == dict.fromkeys(cluster.endpoints, 2)


def test_servers_stay_where_the_launcher_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that was killed on its way out is started again, and finds them."""
    program, listen, scope = pserver_program(sync=True, trainers=1)
    host = Host(program, listen, scope)
    for stays in ("1", "0"):
        monkeypatch.setenv("FLUIDLITE_STAY", stays)
        service = make_process_service(listen, host)
        identity = Identity("job", 0, 1)
        service.register(Registration(identity, 1))
        service.complete(identity)
        assert service.poll(0.0) is (stays == "0")


# --- checkpoints of another layout, or without a log --------------------------------------------------------------------


def _host(folder: Path, server: int, servers: int, *, log: bool = True) -> tuple[Host, Keeper, PServer]:
    program, listen, scope = pserver_program(sync=False, trainers=1)
    host = Host(program, listen, scope)
    log_dir = str(folder / "log") if log else ""
    keeper = Keeper(Keeping(checkpoint_dir=str(folder / "checkpoints"), log_dir=log_dir), server, servers, host)
    return host, keeper, make_service(host, ServiceOptions(stays=True), keeper=keeper)


def _train(server: PServer, incarnation: int, steps: int) -> int:
    """Steps of the only trainer, from where it ended; its number of steps then."""
    me = Identity("job", 0, incarnation)
    first = server.register(Registration(me, 1)).next_sequence
    for sequence in range(first, first + steps):
        gradients = [
            Gradient("", "w@GRAD", np.ones(3)),
            Gradient("", "emb@GRAD", np.ones((1, 2)), np.array([2 * sequence]), 0),
        ]
        server.commit(Push(StepHeader(me, sequence, sequence, 0, 2), gradients, []))()
    return first + steps


def test_without_a_log_trainers_go_on_where_the_checkpoint_was_cut(tmp_path: Path) -> None:
    host, _, server = _host(tmp_path, 0, 1, log=False)
    assert _train(server, 1, 5) == 5
    server.close()
    host, _, server = _host(tmp_path, 0, 1, log=False)
    assert (host.version, _train(server, 2, 3)) == (5, 8)
    server.close()


def test_a_log_that_follows_a_checkpoint_of_another_number_of_servers(tmp_path: Path) -> None:
    _, _, server = _host(tmp_path, 0, 1)
    _train(server, 1, 5)
    server.close()
    for kill in range(3):
        host, keeper, server = _host(tmp_path, 0, 2)
        assert host.version == 5 + 2 * kill, "the checkpoint of one server, and the log of the first of two"
        _, other, neighbour = _host(tmp_path, 1, 2)
        assert _train(server, 10 + kill, 2) == 7 + 2 * kill
        for kept in (keeper, other):
            kept.close()
        del neighbour


def test_a_log_does_not_bring_back_what_another_layout_has_left_behind(tmp_path: Path) -> None:
    _, _, server = _host(tmp_path, 0, 1)
    _train(server, 1, 5)
    server.close()
    both = [_host(tmp_path, index, 2) for index in range(2)]
    for _, _, server in both:
        _train(server, 2, 3)
    for _, _, server in both:
        server.close()
    with pytest.raises(CorruptFileError, match="went on to checkpoint 8 with 2 servers; remove the folder"):
        _host(tmp_path, 0, 1)


def test_a_job_that_ended_well_is_over_whatever_its_last_checkpoint_was_cut_for(tmp_path: Path) -> None:
    for log in (True, False):
        folder = tmp_path / str(log)
        for run in range(2):
            program, listen, scope = pserver_program(sync=False, trainers=1)
            host = Host(program, listen, scope)
            keeping = Keeping(
                checkpoint_dir=str(folder / "checkpoints"),
                checkpoint_every=5,
                log_dir=str(folder / "log") if log else "",
            )
            server = make_service(host, keeper=Keeper(keeping, 0, 1, host))
            assert _train(server, 1 + run, 5) == 5, "another job begins at its own step 0"
            assert host.version == 5 * (run + 1), "and goes on from what was trained"
            server.complete(Identity("job", 0, 1 + run))
            server.close()


def test_logs_of_another_number_of_servers_without_a_checkpoint_are_not_passed_over(tmp_path: Path) -> None:
    keeping = Keeping(log_dir=str(tmp_path))
    server = PServer(DictStore(), trainers=1, sync=True, keeper=Keeper(keeping, 0, 2))
    server.close()
    with pytest.raises(CorruptFileError, match=r"another number of servers .server-0-of-2.*or remove the folder"):
        PServer(DictStore(), trainers=1, sync=True, keeper=Keeper(keeping, 0, 3))
