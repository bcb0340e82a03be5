"""The checkpoints of a job in a folder: which are whole, which are good, which one to take, which may go.

Every server writes a manifest of its own. A checkpoint is *whole* when the manifests of all its servers are there, with
their files and what they build on; it is *good* when all of that was read and is what was written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO, Final

from fluidlite.checkpoint import manifest as manifests
from fluidlite.checkpoint.chunks import FileInfo, read_chunks
from fluidlite.checkpoint.manifest import Link, Manifest, TableInfo, folder_name
from fluidlite.checkpoint.storage import Folder
from fluidlite.errors import CorruptFileError, MissingFileError

log: Final = logging.getLogger(__name__)
_FOLDER: Final = re.compile(r"checkpoint-([0-9]{9,18})")


@dataclass(frozen=True)
class Checkpoint:
    """What is there of one checkpoint: the manifests that could be read, by server, and what is wrong with others."""

    number: int
    servers: int
    run: str
    manifests: dict[int, Manifest] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Servers whose manifest is not there."""
        return tuple(server for server in range(self.servers) if server not in self.manifests)

    @property
    def incremental(self) -> bool:
        """Whether it needs another checkpoint."""
        return any(table.changed_since for manifest in self.manifests.values() for table in manifest.tables)

    def __str__(self) -> str:
        return f"checkpoint {self.number}"


class Catalogue:
    """The checkpoints of a folder as they were when this was made."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._good: set[str] = set()

    @cached_property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All that is there, whole or not, by number; of one number that which was written last comes last."""
        found: list[Checkpoint] = []
        for number in numbers(self.folder):
            found += sorted(
                _read(self.folder, number), key=lambda c: max((m.written for m in c.manifests.values()), default="")
            )
        return tuple(found)

    def checkpoint(self, number: int) -> Checkpoint:
        """The checkpoint of a number, whole if one is; MissingFileError."""
        found = [c for c in self.checkpoints if c.number == number]
        if not found:
            raise MissingFileError(f"{self.folder.url} has no checkpoint {number}; it has {self._listed()}")
        return next((c for c in reversed(found) if not c.missing), found[-1])

    def chain(self, manifest: Manifest, table: TableInfo) -> list[tuple[Manifest, TableInfo]]:
        """Where the rows of a table are, the oldest first, each with the manifest that says so.

        Raises CorruptFileError where a checkpoint that is built on is not there any more.
        """
        parts = [(manifest, table)]
        while (link := parts[-1][1].changed_since) is not None:
            base = self._linked(link, manifest)
            info = base.table(table.name) if base else None
            if base is None or info is None or base.number >= parts[-1][0].number or info.width != table.width:
                raise CorruptFileError(
                    f"checkpoint {parts[-1][0].number} of server {manifest.server} builds on checkpoint {link.number} "
                    f"({link.id}), which is not there with table {table.name!r}"
                )
            parts.append((base, info))
        return parts[::-1]

    def problems(self, checkpoint: Checkpoint, own: tuple[int, int] | None = None, contents: bool = True) -> list[str]:
        """What is wrong with a checkpoint, or with the part ``own`` of it: (server, servers). ``contents``: every byte is
        read."""
        if own is not None and own[1] != checkpoint.servers:
            return [f"it is one of {checkpoint.servers} servers, not of {own[1]}"]
        servers = range(checkpoint.servers) if own is None else (own[0],)
        wrong = list(checkpoint.problems) if own is None else []
        for server in servers:
            if server in checkpoint.manifests:
                wrong += self._wrong(checkpoint.manifests[server], contents)
            else:
                wrong.append(f"the manifest of server {server} is missing")
        return wrong

    def choose(self, own: tuple[int, int] | None = None) -> Checkpoint:
        """The last good checkpoint, every byte of it read; a warning names each that is passed over.

        With ``own``, (server, servers), only that server's part counts: for one that comes back while the others stayed.
        Raises MissingFileError where none is good.
        """
        for checkpoint in reversed(self.checkpoints):
            wrong = self.problems(checkpoint, own)
            if not wrong:
                return checkpoint
            log.warning("%s in %s is not used: %s", checkpoint, self.folder.url, "; ".join(wrong))
        raise MissingFileError(f"{self.folder.url} has no good checkpoint; it has {self._listed()}")

    def whole(self) -> list[Checkpoint]:
        """The checkpoints whose manifests and files are all there, by number; contents are not read."""
        return [c for c in self.checkpoints if not self.problems(c, contents=False)]

    def needed(self, checkpoint: Checkpoint) -> Iterator[Manifest]:
        """The manifests of a checkpoint and of all that it builds on."""
        for manifest in checkpoint.manifests.values():
            yield manifest
            for table in manifest.tables:
                yield from (part for part, _ in self.chain(manifest, table))

    def _wrong(self, manifest: Manifest, contents: bool) -> Iterator[str]:
        files = [(manifest.number, file) for file in manifest.files]
        for table in manifest.tables:
            try:
                files += [(part.number, info.file) for part, info in self.chain(manifest, table)[:-1]]
            except CorruptFileError as error:
                yield str(error)
        for number, file in files:
            try:
                self._check(number, file, contents)
            except (CorruptFileError, OSError) as error:
                yield str(error)

    def _check(self, number: int, file: FileInfo, contents: bool) -> None:
        path = f"{folder_name(number)}/{file.name}"
        if path in self._good:
            return
        if contents:
            with self.folder.open(path) as stream:
                for _ in read_chunks(stream, self.folder.size(path), file, path):
                    pass
            self._good.add(path)
        elif (size := self.folder.size(path)) != file.size:
            raise CorruptFileError(f"{path} is {size} bytes long, its manifest says {file.size}")

    def _linked(self, link: Link, manifest: Manifest) -> Manifest | None:
        for checkpoint in self.checkpoints:
            base = checkpoint.manifests.get(manifest.server)
            if base is not None and base.link == link and base.servers == manifest.servers:
                return base
        return None

    def _listed(self) -> str:
        return ", ".join(dict.fromkeys(str(c.number) for c in self.checkpoints)) or "none"


def split(url: str) -> tuple[str, int | None]:
    """(the folder of checkpoints, the number) of a URL, which may name the folder of one checkpoint.

    >>> split("memory://job/checkpoint-000000012/")
    ('memory://job', 12)
    """
    folder, _, last = url.rstrip("/").rpartition("/")
    found = _FOLDER.fullmatch(last)
    return (folder or ("/" if url.startswith("/") else "."), int(found[1])) if found else (url, None)


def numbers(folder: Folder) -> list[int]:
    """The numbers of the checkpoints of which there is anything, ascending."""
    return sorted(int(found[1]) for name in folder.names() if (found := _FOLDER.fullmatch(name)))


def remove_old(folder: Folder, server: int, servers: int, keep_max: int) -> None:
    """Remove what this server wrote of checkpoints older than the last ``keep_max`` whole ones, and that these do not
    build on. Servers that the job no longer has are cared for by the one of their number modulo ``servers``."""
    catalogue = Catalogue(folder)
    kept = catalogue.whole()[-keep_max:]
    if len(kept) < keep_max:
        return
    needed = {manifest.link for checkpoint in kept for manifest in catalogue.needed(checkpoint)}
    for number in numbers(folder):
        if number < kept[0].number:
            _remove(folder, number, server, servers, needed)


def _remove(folder: Folder, number: int, server: int, servers: int, needed: set[Link]) -> None:
    """Remove manifests first: what has none does not count."""
    at = folder_name(number)
    names = folder.names(at)
    going = [name for name in names if (who := manifests.whose(name)) and who[0] % servers == server]
    for name in going:
        if not _is_needed(folder, f"{at}/{name}", needed):
            prefix = name.removesuffix("json")
            for path in (name, *(other for other in names if other.startswith(prefix) and other != name)):
                folder.remove(f"{at}/{path}")
    if not going:
        for path in names:
            if path.startswith(f"server-{server}-of-{servers}."):
                folder.remove(f"{at}/{path}")  # of a checkpoint that was never finished


def _is_needed(folder: Folder, path: str, needed: set[Link]) -> bool:
    try:
        return _manifest(folder, path).link in needed
    except (CorruptFileError, OSError):
        return False


def _read(folder: Folder, number: int) -> list[Checkpoint]:
    """What is there of a number: of each count of servers and run, that is mostly of one."""
    groups: dict[tuple[int, str], dict[int, Manifest]] = {}
    damaged: dict[int, list[str]] = {}
    for name in folder.names(folder_name(number)):
        who = manifests.whose(name)
        if who is None:
            continue
        path = f"{folder_name(number)}/{name}"
        try:
            found = _manifest(folder, path)
            if (found.number, found.server, found.servers) != (number, *who):
                raise CorruptFileError(f"{path} is the manifest of another checkpoint")
        except (CorruptFileError, OSError) as error:
            damaged.setdefault(who[1], []).append(str(error))
        else:
            groups.setdefault((found.servers, found.run), {})[found.server] = found
    for servers in damaged:
        if not any(count == servers for count, _ in groups):
            groups[servers, ""] = {}
    return [
        Checkpoint(number, servers, run, found, tuple(damaged.get(servers, ())))
        for (servers, run), found in groups.items()
    ]


def _manifest(folder: Folder, path: str) -> Manifest:
    size = folder.size(path)
    if size > manifests.MOST_BYTES:
        raise CorruptFileError(f"{path} is {size} bytes long; a manifest has at most {manifests.MOST_BYTES}")
    with folder.open(path) as stream:
        return manifests.from_bytes(_all(stream, size), path)


def _all(stream: BinaryIO, size: int) -> bytes:
    parts: list[bytes] = []
    while part := stream.read(size + 1):
        parts.append(part)
    return b"".join(parts)
