"""Loops in stored texts, and in a stream as it comes; needs NumPy alone.

python examples/find_loops.py
"""

from lz_penalty.detection import find_repetition, is_endless, stop_on_repetition

TEXTS = {
    "a table": "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 30 + "\nAll of them are zero.",
    "a loop": "Let me check that again. " + "Wait, let me think about it once more. " * 20,
}


def main() -> dict[str, str]:
    """What is said of each text, and where a stream of the loop is stopped."""
    said = {}
    for name, text in TEXTS.items():
        found = find_repetition(text, min_copies=5, min_length=60)
        what = f"{found.copies:.0f} copies of {found.unit!r}" if found else "no copies"
        said[name] = f"{what}, {'endless' if is_endless(text) else 'and then it goes on'}"
    stream = stop_on_repetition(TEXTS["a loop"].split(), min_copies=5, min_length=200)
    said["a stream"] = f"stopped after {len(list(stream))} of {len(TEXTS['a loop'].split())} words"
    return said


if __name__ == "__main__":
    for name, what in main().items():
        print(f"{name}: {what}")
