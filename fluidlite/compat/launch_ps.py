"""``python -m paddle.distributed.launch_ps [options] script.py [args]``: a job of pservers and workers on this machine.

The options are Fluid's. Each process also prints here what it writes to its log; the first that fails ends the job.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fluidlite.errors import LaunchError
from fluidlite.launch import HOST, Job, command_line, make_env, run_job, show

__all__ = ["launch", "launch_two", "parse_args"]

#: seconds that servers get to end by themselves: scripts for Fluid leave them to be ended
_SERVER_GRACE: Final = 5.0


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="paddle.distributed.launch_ps", description="a job of pservers and workers")
    add = parser.add_argument
    add("--cluster_node_ips", default=HOST, help="accepted: all processes run on this machine")
    add("--node_ip", default=HOST, help="accepted: all processes run on this machine")
    add("--start_port", type=int, default=6170, help="port of the first pserver; 0: free ports")
    add("--print_config", default=True, help="accepted")
    add("--endpoints", default="", help="endpoints of the pservers, separated by commas")
    add("--worker_num", type=int, default=2, help="number of workers")
    add("--server_num", type=int, default=2, help="number of pservers")
    add("--log_dir", default="logs", help="folder that keeps each process' output")
    add("training_script")
    add("training_script_args", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    endpoints = args.endpoints.split(",") if args.endpoints else []
    if wrong := [endpoint for endpoint in endpoints if not re.fullmatch(r".+:\d{1,5}", endpoint)]:
        parser.error(f"--endpoints must be HOST:PORT, separated by commas, unlike {', '.join(map(repr, wrong))}")
    if args.worker_num < 1 or args.server_num < 1:
        parser.error("a job needs at least one worker and one pserver")
    if endpoints and len(endpoints) != args.server_num:
        parser.error(f"--endpoints names {len(endpoints)} pservers, --server_num says {args.server_num}")
    if not Path(args.training_script).is_file():
        parser.error(f"there is no script {args.training_script}")
    return args


def launch(arguments: Sequence[str] | None = None) -> None:
    """Run the job and wait for its end. Exits with 1 when a process fails, with 130 after Ctrl-C."""
    args = parse_args(arguments)
    env = make_env(args.server_num, args.worker_num, seed=0)
    for proxy in ("http_proxy", "https_proxy"):
        env.pop(proxy, None)
    command = command_line([args.training_script, *args.training_script_args], compat=True)
    job = Job(
        command,
        args.server_num,
        args.worker_num,
        Path(args.log_dir),
        env,
        endpoints=_endpoints(args.endpoints, args.start_port, args.server_num),
        server_grace=_SERVER_GRACE,
    )
    try:
        run_job(job, show)
    except LaunchError as error:
        print(f"launch_ps: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("launch_ps: interrupted; all processes were ended", file=sys.stderr)
        raise SystemExit(130) from None


def launch_two(arguments: Sequence[str] | None = None) -> None:
    """``paddle.distributed.launch`` (``fleetrun``) of Paddle 2.x for parameter servers: ``--server_num`` and ``--worker_num``, or
    ``--servers`` and ``--workers`` with endpoints of this machine. A job without pservers is refused."""
    parser = argparse.ArgumentParser(prog="paddle.distributed.launch", description="a job of pservers and workers")
    add = parser.add_argument
    add("--servers", default="", help="endpoints of the pservers, separated by commas")
    add("--workers", default="", help="endpoints of the workers; only their number counts")
    add("--server_num", type=int, default=0, help="number of pservers, at free ports")
    add("--worker_num", type=int, default=0, help="number of workers")
    add("--run_mode", default="ps", help="only ps")
    add("--log_dir", default="log", help="folder that keeps each process' output")
    add("script", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    servers = args.server_num or (args.servers.count(",") + 1 if args.servers else 0)
    workers = args.worker_num or (args.workers.count(",") + 1 if args.workers else 0)
    if not servers or not workers or args.run_mode != "ps":
        parser.error("a job without pservers is not supported by fluidlite: say --server_num and --worker_num")
    numbers = ["--server_num", str(servers), "--worker_num", str(workers)]
    launch([*numbers, "--endpoints", args.servers, "--start_port", "0", "--log_dir", args.log_dir, *args.script])


def _endpoints(given: str, start_port: int, servers: int) -> list[str]:
    """The endpoints of the pservers; none: free ones."""
    if given:
        return given.split(",")
    return [f"{HOST}:{start_port + index}" for index in range(servers)] if start_port else []
