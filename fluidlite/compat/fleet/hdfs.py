"""``paddle.fluid.incubate.fleet.utils.hdfs``: files on HDFS, by the ``hadoop`` command."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fluidlite.errors import FluidliteError, MissingFileError

__all__ = ["HDFSClient"]

#: columns of a line of ``hadoop fs -ls``; the last is the path
_COLUMNS: Final = 8


class HDFSClient:
    """Runs ``<hadoop_home>/bin/hadoop fs`` with ``configs`` as ``-D<name>=<value>``.

    What fails says False, or gives an empty list or text, as in Fluid. Raises MissingFileError when there is no such command.
    """

    def __init__(self, hadoop_home: str, configs: Mapping[str, str]) -> None:
        self.pre_commands = [f"{hadoop_home}/bin/hadoop", "fs", *(f"-D{k}={v}" for k, v in configs.items())]

    def _run(self, *arguments: str, retry_times: int = 0) -> tuple[bool, str]:
        """(whether it went well, what it printed)."""
        command = [*self.pre_commands, *arguments]
        output = ""
        for _ in range(retry_times + 1):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (hadoop is asked for)
            except FileNotFoundError as error:
                raise MissingFileError(f"HDFSClient: there is no {command[0]}; say the right hadoop_home") from error
            output = done.stdout
            if done.returncode == 0:
                return True, output
        return False, output

    def cat(self, hdfs_path: str) -> str:
        """The text of a file."""
        well, output = self._run("-cat", hdfs_path, retry_times=1) if self.is_file(hdfs_path) else (False, "")
        return output.strip() if well else ""

    def is_exist(self, hdfs_path: str) -> bool:
        """Whether there is such a file or folder."""
        return self._run("-test", "-e", hdfs_path)[0]

    def is_dir(self, hdfs_path: str) -> bool:
        """Whether it is a folder."""
        return self._run("-test", "-d", hdfs_path)[0]

    def is_file(self, hdfs_path: str) -> bool:
        """Whether it is a file."""
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def delete(self, hdfs_path: str) -> bool:
        """Remove a file, or a folder with all in it. True when it is gone."""
        if not self.is_exist(hdfs_path):
            return True
        return self._run(*(("-rm", "-r") if self.is_dir(hdfs_path) else ("-rm",)), hdfs_path)[0]

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> bool:
        """Move; an existing target only gives way to ``overwrite``."""
        if self.is_exist(hdfs_dst_path):
            if not overwrite:
                return False
            self.delete(hdfs_dst_path)
        return self._run("-mv", hdfs_src_path, hdfs_dst_path)[0]

    def makedirs(self, hdfs_path: str) -> bool:
        """Make a folder and those above it."""
        return self._run("-mkdir", "-p", hdfs_path)[0]

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        """Make a local folder and those above it."""
        Path(local_path).mkdir(parents=True, exist_ok=True)

    def ls(self, hdfs_path: str) -> list[str]:
        """The paths in a folder."""
        return [columns[-1] for columns in self._listing("-ls", hdfs_path)]

    def lsr(self, hdfs_path: str, excludes: Sequence[str] = ()) -> list[str]:
        """The files below a folder, without ``excludes``."""
        found = self._listing("-ls", "-R", hdfs_path)
        return [columns[-1] for columns in found if not columns[0].startswith("d") and columns[-1] not in excludes]

    def _listing(self, *arguments: str) -> list[list[str]]:
        well, output = self._run(*arguments)
        lines = [line.split(maxsplit=_COLUMNS - 1) for line in output.splitlines()] if well else []
        return [columns for columns in lines if len(columns) == _COLUMNS]

    @staticmethod
    def split_files(files: Sequence[str], trainer_id: int, trainers: int) -> list[str]:
        """The contiguous share of one trainer; the first ``len(files) % trainers`` get one more."""
        share, longer = divmod(len(files), trainers)
        begin = trainer_id * share + min(trainer_id, longer)
        return list(files[begin : begin + share + (trainer_id < longer)])

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> list[str]:
        """Copy the files below a folder, or one file, into a local folder; the local paths. One after the other.

        Raises FluidliteError for a file that cannot be fetched.
        """
        files = self.lsr(hdfs_path) if self.is_dir(hdfs_path) else [hdfs_path]
        Path(local_path).mkdir(parents=True, exist_ok=True)
        return [self._fetched(path, Path(local_path) / Path(path).name, overwrite, retry_times) for path in files]

    def _fetched(self, path: str, target: Path, overwrite: bool, retry_times: int) -> str:
        if target.exists() and not overwrite:
            return str(target)
        target.unlink(missing_ok=True)
        if not self._run("-get", path, str(target), retry_times=retry_times)[0]:
            raise FluidliteError(f"HDFSClient: {path} cannot be copied to {target}")
        return str(target)

    def upload(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Copy a local file, or the files below a local folder, into a folder. Whether all of them are there."""
        source = Path(local_path)
        files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
        force = ("-f",) if overwrite else ()
        self.makedirs(hdfs_path)
        return all(self._run("-put", *force, str(path), hdfs_path, retry_times=retry_times)[0] for path in files)

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """Copy a local folder into a folder."""
        if self.is_exist(f"{dest_dir}/{Path(local_dir).name}") and not overwrite:
            return False
        return self._run("-put", *(("-f",) if overwrite else ()), local_dir, dest_dir)[0]
