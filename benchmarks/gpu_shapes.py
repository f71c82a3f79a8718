"""Shapes that `benchmarks.gpu` measures: a grid of batches, windows, vocabularies, presets and kinds of rows."""

from __future__ import annotations

from benchmarks.workload import BATCHES, MAIN_VOCAB, MAIN_WINDOW, PRESETS, VOCABS, WINDOWS, Shape


def main_shapes() -> list[Shape]:
    """Return window 512 and vocabulary 152k with every batch, preset and kind of rows."""
    return [Shape(batch, preset=p, rows=rows) for p in PRESETS for batch in BATCHES for rows in kinds(batch, all_=True)]


def axis_shapes() -> list[Shape]:
    """Return the other windows at the main vocabulary, and the other vocabularies at the main window."""
    shapes = []
    for preset in PRESETS:
        for batch in BATCHES:
            for rows in kinds(batch, all_=preset == "paper"):
                shapes += [Shape(batch, w, MAIN_VOCAB, preset, rows) for w in other_windows(preset)]
            for rows in kinds(batch):
                shapes += [Shape(batch, MAIN_WINDOW, v, preset, rows) for v in VOCABS if v != MAIN_VOCAB]
    return sorted(shapes, key=lambda s: (s.vocab != MAIN_VOCAB, s.vocab, s.window, PRESETS.index(s.preset)))


def corner_shapes() -> list[Shape]:
    """Return the rest of the grid."""
    shapes = [
        Shape(batch, window, vocab, preset, rows)
        for vocab in VOCABS
        if vocab != MAIN_VOCAB
        for preset in PRESETS
        for window in other_windows(preset)
        for batch in BATCHES
        for rows in kinds(batch)
    ]
    return sorted(shapes, key=lambda s: (s.vocab, s.window, PRESETS.index(s.preset)))


def printed_shapes() -> list[Shape]:
    """Return the shapes of the printed table: all main shapes of the paper's preset, and a selection of the rest."""
    shapes = [shape for shape in main_shapes() if shape.preset == "paper" or shape.batch in (64, 256)]
    shapes += [s for s in axis_shapes() if s.batch == 64 and (s.preset == "paper" or s.vocab == MAIN_VOCAB)]
    return shapes


def kinds(batch: int, all_: bool = False) -> tuple[str, ...]:
    """Return the kinds of rows. A batch of one has no "half"."""
    if batch == 1:
        return ("random", "loop")
    return ("random", "half", "loop") if all_ else ("random", "half")


def other_windows(preset: str) -> list[int]:
    """Return the windows besides the main one; the failsafe has no window."""
    return [] if preset == "failsafe" else [window for window in WINDOWS if window != MAIN_WINDOW]
