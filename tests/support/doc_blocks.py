"""The code blocks of README and docs, and what they name: found without running anything."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    import griffe  # the environments of engines do not have it

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "research" / "labelled" / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n+)?^(?P<fence>```+) *(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        page: the file, relative to the repository.
        line: its first line of code.
        language: of the fence; "sh" where the fence says nothing.
        text: the code.
        why: the reason that `<!-- not run: ... -->` before it gives for not running it.
    """

    page: str
    line: int
    language: str
    text: str
    why: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """All blocks of a page; files that a block includes are not code of the page, and left out."""
    page, found = path.read_text(encoding="utf-8"), []
    for match in FENCE.finditer(page):
        language = re.match(r"\{ \.(\w+)|(\w*)", match["info"])
        name = language[1] or language[2] or "sh"
        line = page.count("\n", 0, match.start("text")) + 1
        if not SNIPPET.search(match["text"]):
            found.append(Block(str(path.relative_to(ROOT)), line, name, match["text"], match["why"]))
    return found


def of_language(language: str) -> list[Block]:
    """The blocks of all pages in this language."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def commands(script: str) -> list[list[str]]:
    """Return the simple commands of a script, also those in `$(...)`, as words: the parts between newlines, pipes and `&&`."""
    script = re.sub(r"(?m)(^|\s+)# .*$", "", script)
    script = re.sub(r"\\\n", " ", script)
    inner = re.findall(r"\$\((.*)\)", script)
    script = re.sub(r"\$\(.*\)", "SUBSTITUTED", script)
    lexer = shlex.shlex(script, posix=True, punctuation_chars="|&;\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;\n"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words] + [words for one in inner for words in commands(one)]


def options_of(command: str) -> list[tuple[Block, list[str]]]:
    """Return the arguments of all calls of `lz-penalty COMMAND` in the pages, each with its block."""
    calls = [(block, words) for block in of_language("sh") for words in commands(block.text)]
    return [(block, words[2:]) for block, words in calls if words[:2] == ["lz-penalty", command]]


@lru_cache(maxsize=None)
def package() -> griffe.Module:
    """lz_penalty as its source says, without importing it: some of its modules need an engine that is not here."""
    import griffe

    return griffe.load("lz_penalty", search_paths=[ROOT / "src"])


def named(path: str) -> griffe.Object:
    """The object of this dotted path; a KeyError where there is none."""
    inner = path.removeprefix("lz_penalty").removeprefix(".")
    found = package()[inner] if inner else package()
    return found.final_target if found.is_alias else found


def imports(tree: ast.AST) -> dict[str, str]:
    """What a block imports: name -> dotted path."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name.split(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def check_names(code: str) -> None:
    """Everything that the code imports from lz_penalty is there, and takes the keywords it is called with."""
    tree = compile(code, "<block>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ours = {name: path for name, path in imports(tree).items() if path.split(".")[0] == "lz_penalty"}
    objects = {name: named(path) for name, path in ours.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in objects:
            parameters = objects[node.func.id].parameters
            if any(parameter.kind.name == "var_keyword" for parameter in parameters):
                continue
            known = {parameter.name for parameter in parameters}
            unknown = {keyword.arg for keyword in node.keywords if keyword.arg} - known
            assert not unknown, f"{node.func.id} takes no {', '.join(unknown)}; it takes {', '.join(sorted(known))}"
