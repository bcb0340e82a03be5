"""One role of a recorded job as a process of its own: ``python -m tests.fluid_job_process NAME pserver INDEX`` listens at
port 0 and says where by ``FLUIDLITE_ENDPOINT_FILE``; ``... NAME trainer INDEX ENDPOINTS`` prints its losses."""

from __future__ import annotations

import sys

import fluidlite as fluid
from tests.fluid_jobs import moved, recorded


def main(name: str, role: str, index: int, endpoints: str = "") -> None:
    job = recorded(name)
    known = list(job.pservers)
    exe = fluid.Executor(fluid.CPUPlace())
    if role == "pserver":
        programs = moved(job.pservers[known[index]], {known[index]: "127.0.0.1:0"})
        exe.run(programs.startup)
        exe.run(programs.main)
        return
    programs = moved(job.trainers[index], dict(zip(known, endpoints.split(","), strict=True)))
    exe.run(programs.startup)
    for feed in job.feeds[index]:
        print(f"LOSS {exe.run(programs.main, feed, [job.loss])[0].item()!r}", flush=True)
    exe.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
