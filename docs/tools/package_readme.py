"""Make the README of the package from README.md: hatchling calls this when it builds the package.

A package index shows the README without the repository. So links and pictures must be full addresses: those of the files of
this release, under the address `Repository` in pyproject.toml. Without that address, links become plain text, and pictures
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_BADGE = re.compile(r"\[(!\[[^\]]*\]\([^)\s]*\))\]\(([^)\s]+)\)")
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def for_the_index(readme: str, repository: str, version: str) -> str:
    """Return the README with full addresses, or without links into the repository if its address is not known.

    >>> for_the_index("See [the docs](docs/a.md).", "", "0.1.0")
    'See the docs.'
    """

    def full(found: re.Match[str]) -> str:
        picture, shown, path = found.groups()
        if not repository:
            return "" if picture else shown
        return f"{picture}[{shown}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    def badge(found: re.Match[str]) -> str:
        picture, address = found.groups()
        if not repository:
            return ""
        if not re.match(r"[a-z]+:|#", address):
            address = f"{repository}/blob/v{version}/{address}"
        return f"[{_LINK.sub(full, picture)}]({address})"

    return _LINK.sub(full, _BADGE.sub(badge, readme))


class PackageReadme(MetadataHookInterface):
    """Set the field `readme` of the package."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field; hatchling calls this with the contents of pyproject.toml's table `project`."""
        root = Path(self.root)
        source = (root / "src" / "lz_penalty" / "__init__.py").read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
        if not version:
            raise ValueError("src/lz_penalty/__init__.py has no line `__version__ = ...`")
        readme = (root / "README.md").read_text(encoding="utf-8")
        text = for_the_index(readme, metadata.get("urls", {}).get("Repository", ""), version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
