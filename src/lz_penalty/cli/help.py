"""Help texts: plain text of at most 80 columns, with the examples of a command before its options."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

from lz_penalty.cli.interrupts import telling

__all__ = ["Command", "Overview", "Parts", "ServerCommand", "groups", "parts"]

WIDTH = 80
NAMES = 26  # columns for the names of options, at most
HEADING = "Examples:"
OPTIONS = "Options"
# What typer and click call the values of options, and what the help calls them.
VALUES = {
    **dict.fromkeys(("<str>", "<list[str]>", "TEXT"), "TEXT"),
    **dict.fromkeys(("<int>", "<int range>", "INTEGER", "INTEGER RANGE"), "N"),
    **dict.fromkeys(("<float>", "<float range>", "FLOAT", "FLOAT RANGE"), "X"),
    **dict.fromkeys(("<path>", "<file>", "<list[Path]>", "<list[path]>", "PATH", "FILE"), "FILE"),
}
_VALUE = re.compile(r" (" + "|".join(map(re.escape, sorted(VALUES, key=len, reverse=True))) + r")$")


class Parts(NamedTuple):
    """The help text of a command.

    Attributes:
        summary: one sentence, what the command does.
        examples: command lines, which may go on in the next line after a backslash.
        paragraphs: the rest.
    """

    summary: str
    examples: list[str]
    paragraphs: list[str]


def parts(text: str | None) -> Parts:
    r"""Return the parts of a docstring or help text.

    >>> parts("Do it.\n\nExamples:\n    lz-penalty do it\n\nIt is\ndone.")
    Parts(summary='Do it.', examples=['lz-penalty do it'], paragraphs=['It is done.'])
    """
    summary, *others = inspect.cleandoc(text or "").split("\n\n")
    examples: list[str] = []
    paragraphs = []
    for paragraph in others:
        heading, *lines = paragraph.split("\n")
        if heading == HEADING:
            examples += re.split(r"(?<!\\)\n", inspect.cleandoc("\n" + "\n".join(lines)))
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return Parts(" ".join(summary.split()), examples, paragraphs)


def _criteria() -> str:
    from lz_penalty.detection._verdict import CRITERIA

    *first, last = CRITERIA
    return f"{', '.join(first)} or {last}"


def _default_criteria() -> str:
    from lz_penalty.detection._verdict import CAPPED, FINISHED

    others = " and ".join(name for name in CAPPED if name not in FINISHED)
    return f"{', '.join(FINISHED)}; for texts that a limit cut off also {others}"


# Words in the help of options that are replaced when the help is shown: other commands need not import detection.
FILLED: Mapping[str, Callable[[], str]] = {"CRITERIA": _criteria, "DEFAULT_CRITERIA": _default_criteria}


def groups(command: Any, context: Any) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return the arguments and options of a command by the heading of their group: names, and what they mean."""
    found: dict[str, list[tuple[str, str]]] = {"Arguments": [], OPTIONS: []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            heading, names = "Arguments", parameter.metavar or parameter.name.upper()
        else:
            heading = getattr(parameter, "rich_help_panel", None) or OPTIONS
            names = _VALUE.sub(lambda match: f" {VALUES[match[1]]}", record[0])
        meaning = re.sub(r"\b[A-Z_]*CRITERIA\b", lambda match: FILLED[match[0]](), record[1])
        found.setdefault(heading, []).append((names, _in_words(meaning)))
    return {heading: rows for heading, rows in found.items() if rows}


def _in_words(meaning: str) -> str:
    r"""Return what an option means, with its range in words.

    >>> _in_words("How many.  [default: (all); 1<=x<=9]")
    'How many.  [default: all; 1 to 9]'
    """
    meaning = re.sub(r"; 0<=x<=\d{10,}", "", meaning)  # any number
    meaning = re.sub(r"([-\d.]+)<=x<=([-\d.]+)", r"\1 to \2", meaning)
    meaning = re.sub(r"x>=([-\d.]+)", r"at least \1", meaning)
    return re.sub(r"default: \((.*?)\)(?=[;\]])", r"default: \1", meaning)


def _begin(command: Any, context: Any, formatter: Any) -> Parts:
    """Write the usage and the summary; return the parts of the help text."""
    formatter.width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - 1
    pieces = " ".join(command.collect_usage_pieces(context))
    formatter.write_usage(context.command_path, re.sub(r"[{}]", "", pieces))
    text = parts(command.help)
    formatter.write("\n")
    formatter.write_text(text.summary)
    return text


def _write_examples(examples: list[str], formatter: Any) -> None:
    if examples:
        with formatter.section(HEADING.removesuffix(":")):
            for line in "\n".join(examples).split("\n"):
                formatter.write(f"  {line}\n")


def _write_paragraphs(paragraphs: list[str], formatter: Any) -> None:
    for paragraph in paragraphs:
        formatter.write("\n")
        formatter.write_text(paragraph)


def _columns(formatter: Any) -> int:
    return min(NAMES, formatter.width // 3)


class Command(TyperCommand):
    """A command whose help teaches by example, and which says after Ctrl-C what was kept."""

    serves = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        text = _begin(self, ctx, formatter)
        _write_examples(text.examples, formatter)
        _write_paragraphs(text.paragraphs, formatter)
        for heading, rows in groups(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=_columns(formatter))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with telling(serves=self.serves):
            return super().invoke(ctx)


class ServerCommand(Command):
    """A command that runs a server until it is stopped."""

    serves = True


class Overview(TyperGroup):
    """The group of all commands, whose help orders them by what they are for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        text = _begin(self, ctx, formatter)
        found: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            found.setdefault(heading, []).append((name, command.short_help or parts(command.help).summary))
        longest = max(len(name) for rows in found.values() for name, _ in rows)
        for heading, rows in found.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(longest), summary) for name, summary in rows])
        with formatter.section(OPTIONS):
            formatter.write_dl(groups(self, ctx)[OPTIONS])
        _write_examples(text.examples, formatter)
        _write_paragraphs(text.paragraphs, formatter)
