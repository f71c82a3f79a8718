"""Find loops in stored texts and in a stream. Needs only NumPy.

python examples/find_loops.py
"""

from lz_penalty.detection import find_repetition, is_endless, stop_on_repetition

TEXTS = {
    "a table": "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 30 + "\nAll of them are zero.",
    "a loop": "Let me check that again. " + "Wait, let me think about it once more. " * 20,
}


def main() -> dict[str, str]:
    """Return a verdict on each text, and where a stream of the loop is stopped."""
    verdicts = {}
    for name, text in TEXTS.items():
        found = find_repetition(text, min_copies=5, min_length=60)
        copies = f"{found.copies:.0f} copies of {found.unit!r}" if found else "no copies"
        verdicts[name] = f"{copies}, {'endless' if is_endless(text) else 'and then it goes on'}"
    stream = stop_on_repetition(TEXTS["a loop"].split(), min_copies=5, min_length=200)
    verdicts["a stream"] = f"stopped after {len(list(stream))} of {len(TEXTS['a loop'].split())} words"
    return verdicts


if __name__ == "__main__":
    for name, verdict in main().items():
        print(f"{name}: {verdict}")
