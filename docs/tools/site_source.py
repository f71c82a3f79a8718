"""Collect the pages of the documentation site in build/docs: `python -m docs.tools.site_source`.

The pages of docs/ are plain Markdown that reads well on a forge too. This script copies them, with these changes:

- A link to a file of the repository leads to its copy in the site.
- A paragraph that is only a link to a file of `examples/` or to a sweep becomes the code of that file.
- An item of an API page becomes the documentation of the object that it names.
- The explorer appears on the front page, at the comment `<!-- the explorer -->`.
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
    "research/presets/README.md": "choice/index.md",
    f"{REAL}/README.md": "study-real/run.md",
    f"{REAL}/report.md": "study-real/index.md",
    f"{STUDY}/report.md": "study-small/index.md",
    f"{STUDY}/results.csv": "study-small/results.csv",
    f"{STUDY}/summary.csv": "study-small/summary.csv",
}
DIAGRAMS = {"architecture.svg", "layers.svg"}  # drawn for light and dark; other pictures are inverted in the dark
MODULE_OPTIONS = ("show_root_heading: false", "show_root_toc_entry: false", "show_submodules: false")
API_OPTIONS = {  # options of mkdocstrings for single objects
    "lz_penalty.bundled_model.problems": ("members: [Problem, generate, prompt, extract_answer, split_of]",),
    "lz_penalty.engines.llama_cpp.LZPenaltyProcessors": ("members: false",),
    "lz_penalty.engines.mlx_lm.LZPenaltyProcessor": ("members: false",),
    "lz_penalty.engines.transformers": (*MODULE_OPTIONS, "members_order: __all__"),
    "lz_penalty.engines.vllm.LZPenaltyLogitsProcessor": ("members: false",),
    "lz_penalty.policy": (*MODULE_OPTIONS, "members_order: __all__"),
    "lz_penalty.policy.counters": ("members: [totals, add, register]",),
} | dict.fromkeys(
    (f"lz_penalty.{name}" for name in ("reference", "loops", "explain", "guard", "bundled_model")), MODULE_OPTIONS
)
API_ITEM = re.compile(r"^- \[`(lz_penalty[\w.]*)`\]\(\S+\): (.+(?:\n  .+)*)$", re.MULTILINE)
_EXPLORER = '<iframe class="explorer" src="explorer.html" title="The explorer: the penalty on any text"></iframe>'
_INCLUDED = re.compile(r"^\[[^\]]+\]\(((?:\.\./)+((?:examples|src)/\S+\.(py|toml)))\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"(!\[[^\]]*\]\((?:\S*/)?([^)\s/]+\.svg)\))$", re.MULTILINE)


def main() -> None:
    """Write build/docs anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    places = site_paths()
    for file, place in places.items():
        (OUT / place).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            page = with_site_links(for_the_site(file.read_text(encoding="utf-8")), file, places)
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


def for_the_site(page: str) -> str:
    """Return the page with code, documentation of objects and the explorer in place of the links to them."""

    def code(found: re.Match[str]) -> str:
        _, file, language = found.groups()
        text = (ROOT / file).read_text(encoding="utf-8").rstrip()
        return f'``` {{ .{language.replace("py", "python")} title="{file}" }}\n{text}\n```'

    def documentation(found: re.Match[str]) -> str:
        options = [f"      {option}" for option in API_OPTIONS.get(found[1], ())]
        return "\n".join(["", f"::: {found[1]}", *(["    options:", *options] if options else []), ""])

    def picture(found: re.Match[str]) -> str:
        return f"{found[1]}{{ .{'diagram' if found[2] in DIAGRAMS else 'figure'} }}"

    page = API_ITEM.sub(documentation, _INCLUDED.sub(code, page))
    return _PICTURE.sub(picture, page).replace("<!-- the explorer -->", _EXPLORER)


def with_site_links(page: str, file: Path, places: dict[Path, Path]) -> str:
    """Return the page with each link to a copied file pointing to the copy.

    Links to other files of the repository become plain text. Links to pages that the site generates stay as they are.
    """

    def replaced(found: re.Match[str]) -> str:
        shown, address = found.groups()
        link = urlsplit(address)
        target = Path(os.path.normpath(file.parent / link.path))
        if link.scheme or not link.path:
            return found[0]
        if target not in places:
            return shown if target.exists() else found[0]
        path = Path(os.path.relpath(places[target], places[file].parent))
        return f"[{shown}]({path.as_posix()}{f'#{link.fragment}' if link.fragment else ''})"

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
