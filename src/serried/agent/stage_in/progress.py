"""Progress of stage-in on this node: written by the thread that stages, read by the one that reports."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from serried.agent.stage_in.archives import Reading
from serried.agent.stage_in.extents import ExtentLog
from serried.fs.manifest import Manifest


class StagingProgress:
    def __init__(self) -> None:
        self.manifests: Dict[int, Manifest] = {}
        """By item, of those that are known."""
        self.current: Optional[ExtentLog] = None
        """The item at hand."""
        self.unpacking: Optional[Reading] = None
        """The archive that is here and becomes a folder."""
        self.waits_for: Optional[str] = None
        """The run whose job puts there what we need, empty where its name is not known; None where we do not wait."""
        self._finished: List[Tuple[int, int]] = []

    def finish_item(self, number: int) -> Tuple[int, int]:
        """The item at hand is here; how many bytes and files that are."""
        manifest = self.manifests.get(number)
        size = (manifest.held, manifest.files) if manifest else (0, 0)
        self.current = None
        self._finished.append(size)
        return size

    def restart(self, number: int) -> None:
        self.manifests.pop(number, None)
        self.current = None

    def forget(self) -> None:
        """What a manifest of a million files takes is memory for ranks."""
        self.manifests.clear()
        self.current = None

    @property
    def totals(self) -> Tuple[int, int]:
        """Bytes and files."""
        current, finished = self.current, list(self._finished)
        size, files = (current.bytes, current.files) if current else (0, 0)
        return size + sum(bytes_ for bytes_, _ in finished), files + sum(files for _, files in finished)

    @property
    def facts(self) -> Dict[str, Any]:
        """For `contract.sizes.progress`: of all items, or of the archive that is unpacked."""
        size, files = self.totals
        manifests = list(self.manifests.values())
        of = sum(manifest.held for manifest in manifests)
        common = {
            "files": files,
            "of_files": sum(manifest.files for manifest in manifests),
            "waits_for": self.waits_for,
        }
        unpacking = self.unpacking
        if unpacking:
            return {"bytes": unpacking.at, "of": unpacking.size, **common, "unpacks": True}
        return {"bytes": size, "of": of, **common, "unpacks": False}
