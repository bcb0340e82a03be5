"""``fluid.contrib.utils.hdfs_utils``: files on HDFS, by the ``hadoop`` command."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from fluidlite.compat.fleet import hdfs
from fluidlite.errors import FluidliteError

__all__ = ["HDFSClient", "multi_download", "multi_upload"]


class HDFSClient(hdfs.HDFSClient):
    """As the one of fleet, but for one file at a time: `download` and `upload` tell whether it went well."""

    def download(  # type: ignore[override]
        self, hdfs_path: str, local_path: str, overwrite: bool = False, unzip: bool = False
    ) -> bool:
        """Copy a file into a local folder. False when it is not there, is a folder, or is there already and there was no
        ``overwrite``; ``unzip`` is Fluid's, which does nothing either."""
        target = Path(local_path) / PurePosixPath(hdfs_path).name
        if not self.is_file(hdfs_path) or (target.exists() and not overwrite):
            return False
        self.make_local_dirs(local_path)
        try:
            self._fetched(hdfs_path, target, overwrite=True, retry_times=5)
        except FluidliteError:
            return False
        return True

    def upload(  # type: ignore[override]
        self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5
    ) -> bool:
        """Copy a local file into a folder. False for a folder, and when it is there already and there was no
        ``overwrite``."""
        source = Path(local_path)
        target = f"{hdfs_path}/{source.name}"
        if source.is_dir() or (self.is_exist(target) and not overwrite):
            return False
        return super().upload(hdfs_path, local_path, 1, overwrite, retry_times)

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:  # type: ignore[override]
        """What is below a folder: files, without ``only_file`` folders too. In the order of ``hadoop``."""
        found = self._listing("-ls", "-R", hdfs_path)
        return [columns[-1] for columns in found if not (only_file and columns[0].startswith("d"))]


def multi_download(
    client: HDFSClient, hdfs_path: str, local_path: str, trainer_id: int, trainers: int, multi_processes: int = 5
) -> list[str]:
    """Copy this trainer's share of the files below a folder, every ``trainers``-th one, ``multi_processes`` at a time.

    Returns the local paths, below ``local_path`` as they were below ``hdfs_path``.
    """
    client.make_local_dirs(local_path)
    mine = client.lsr(hdfs_path)[trainer_id::trainers]
    targets = [Path(local_path) / PurePosixPath(path).relative_to(_below(hdfs_path, path)) for path in mine]
    with ThreadPoolExecutor(max(multi_processes, 1)) as pool:
        list(pool.map(client.download, mine, (str(target.parent) for target in targets)))
    return [str(target) for target in targets]


def _below(folder: str, path: str) -> str:
    """The folder in the form in which ``hadoop`` lists what is in it, with the scheme or without."""
    at = path.find(folder.rstrip("/"))
    return path[: at + len(folder.rstrip("/"))] if at >= 0 else str(PurePosixPath(path).parent)


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """Copy all files below a local folder, ``multi_processes`` at a time."""
    root = Path(local_path)
    files = sorted(path for path in root.rglob("*") if path.is_file())

    def upload(path: Path) -> bool:
        return client.upload(str(PurePosixPath(hdfs_path) / path.parent.relative_to(root)), str(path), overwrite)

    with ThreadPoolExecutor(max(multi_processes, 1)) as pool:
        list(pool.map(upload, files))
