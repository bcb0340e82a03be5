"""Longer checks than the gate runs: ``nox -s full`` (slow tests), ``nox -s floor`` (oldest supported packages)."""

from __future__ import annotations

import nox

FLOOR = ("numpy==1.26.0", "grpcio==1.60.0", "protobuf==4.25.0", "networkx==3.2", "rich==13.7.0", "typer==0.12.0")


@nox.session(python=["3.11", "3.12", "3.13"])
def full(session: nox.Session) -> None:
    """Everything, the tests marked ``full`` included."""
    session.install("-e", ".[test]")
    session.run("pytest", "-n", "2", "-m", "full or not full", *session.posargs)


@nox.session(python="3.11")
def floor(session: nox.Session) -> None:
    """The suite on the oldest supported packages."""
    session.install("-e", ".[test]", *FLOOR)
    session.run("pytest", "-n", "2", *session.posargs)
