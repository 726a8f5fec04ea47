"""How far a node is: written by the thread that brings its data, read by the one that tells of it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from serried.agent.stage_in.archives import Reading
from serried.agent.stage_in.extents import Arrived
from serried.fs.manifest import Manifest


class Far:
    def __init__(self) -> None:
        self.manifests: Dict[int, Manifest] = {}
        """By item, of those that are known."""
        self.coming: Optional[Arrived] = None
        """The item at hand."""
        self.unpacks: Optional[Reading] = None
        """The archive that is here and becomes a folder."""
        self.waits_for: Optional[str] = None
        """The run whose job puts there what we need, empty where its name is not known; None where we do not wait."""
        self._came: List[Tuple[int, int]] = []

    def end(self, number: int) -> Tuple[int, int]:
        """The item at hand is here; how many bytes and files that are."""
        known = self.manifests.get(number)
        came = (known.held, known.files) if known else (0, 0)
        self.coming = None
        self._came.append(came)
        return came

    def again(self, number: int) -> None:
        self.manifests.pop(number, None)
        self.coming = None

    def forget(self) -> None:
        """What a manifest of a million files takes is memory for ranks."""
        self.manifests.clear()
        self.coming = None

    @property
    def here(self) -> Tuple[int, int]:
        """Bytes and files."""
        coming, came = self.coming, list(self._came)
        size, files = (coming.bytes, coming.files) if coming else (0, 0)
        return size + sum(bytes_ for bytes_, _ in came), files + sum(files for _, files in came)

    @property
    def facts(self) -> Dict[str, Any]:
        """For `contract.sizes.progress`: of all items, or of the archive that is unpacked."""
        size, files = self.here
        known = list(self.manifests.values())
        of = sum(manifest.held for manifest in known)
        told = {"files": files, "of_files": sum(manifest.files for manifest in known), "waits_for": self.waits_for}
        unpacks = self.unpacks
        if unpacks:
            return {"bytes": unpacks.at, "of": unpacks.size, **told, "unpacks": True}
        return {"bytes": size, "of": of, **told, "unpacks": False}
