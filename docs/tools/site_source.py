"""Collect the pages of the documentation site in build/docs: `python -m docs.tools.site_source`.

The pages of docs/ link to files as they are in the repository, so that the links work on a forge too. This script copies the
pages and the files from elsewhere in the repository, points the links to the copies, and adds the generated pages.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "docs"
STUDY = "research/studies/small"
REAL = "research/studies/real"
ELSEWHERE = {  # a file outside docs/ and its path in the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "research/labelled/README.md": "labelled.md",
    f"{REAL}/report.md": "study-real/index.md",
    f"{STUDY}/report.md": "study-small/index.md",
    f"{STUDY}/results.csv": "study-small/results.csv",
    f"{STUDY}/summary.csv": "study-small/summary.csv",
}
_LINK = re.compile(r"(?<=\]\()[^)\s]+")


def main() -> None:
    """Write build/docs anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    places = site_paths()
    for file, place in places.items():
        (OUT / place).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            page = with_site_links(file.read_text(encoding="utf-8"), file, places)
            (OUT / place).write_text(page, encoding="utf-8")
        else:
            shutil.copyfile(file, OUT / place)
    from benchmarks.explorer import built

    (OUT / "cli.md").write_text(command_page(), encoding="utf-8")
    (OUT / "explorer.html").write_text(built(), encoding="utf-8")


def site_paths() -> dict[Path, Path]:
    """Return the files that the site copies, each with its path in the site."""
    docs = ROOT / "docs"
    pages = [path for path in docs.rglob("*") if path.is_file() and "tools" not in path.relative_to(docs).parts]
    places = {path: path.relative_to(docs) for path in sorted(pages)}
    places |= {ROOT / file: Path(place) for file, place in ELSEWHERE.items()}
    figures = sorted((ROOT / STUDY / "figures").glob("*.png"))
    real = sorted(path for part in ("figures", "tables") for path in (ROOT / REAL / part).iterdir())
    places |= {path: Path("study-real", path.parent.name, path.name) for path in real}
    return places | {path: Path("study-small", "figures", path.name) for path in figures}


def with_site_links(page: str, file: Path, places: dict[Path, Path]) -> str:
    """Return the page with each link to a copied file pointing to the copy."""

    def replaced(found: re.Match[str]) -> str:
        link = urlsplit(found[0])
        target = Path(os.path.normpath(file.parent / link.path))
        if link.scheme or not link.path or target not in places:
            return found[0]
        path = Path(os.path.relpath(places[target], places[file].parent))
        return path.as_posix() + (f"#{link.fragment}" if link.fragment else "")

    return _LINK.sub(replaced, page)


def command_page() -> str:
    """Return the help of all commands as one page."""
    import typer.main

    from lz_penalty.cli import COMMANDS, app
    from lz_penalty.cli.help import groups, parts

    found = typer.main.get_command(app).commands
    page = [
        "# The command line",
        "`lz-penalty COMMAND --help` shows the same texts in the terminal.",
        "| | |\n|---|---|",
    ]
    for heading, names in COMMANDS.items():
        links = [f"[`{name}`](#lz-penalty-{name})" for name in names]
        page[-1] += f"\n| {heading} | {', '.join(links)} |"
    for name, command in found.items():
        text = parts(command.help)
        page += [f"## `lz-penalty {name}`", _plain(text.summary)]
        if text.examples:
            page.append("```sh\n" + "\n".join(text.examples) + "\n```")
        page += map(_plain, text.paragraphs)
        context = command.make_context(name, [], resilient_parsing=True)
        for heading, rows in groups(command, context).items():
            cells = [(names.replace("|", r"\|"), _plain(meaning)) for names, meaning in rows]
            page.append(f"| {heading} | |\n|---|---|\n" + "\n".join(f"| `{left}` | {right} |" for left, right in cells))
    return "\n\n".join(page) + "\n"


def _plain(text: str) -> str:
    """Return a text of the help as Markdown: characters that Markdown would obey are escaped, except backticks."""
    return re.sub(r"([\[\]|*_<>])(?=(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", text)


if __name__ == "__main__":
    main()
