"""Clean the texts, train the tokenizer, hold out books, and write the files for training. Runs on a CPU.

    PYTHONPATH=src python -m research.training.prepare --source DATA --out research/training/_data

DATA contains gutenberg_prose.txt.xz (books separated by a line <|endoftext|>) and gsm8k_train.jsonl.xz. The output
folder gets the tokenizer and xz-compressed uint16 token arrays. The prompts and passages from held-out books are written
into the package, because the evaluation needs them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from lz_penalty.bundled_model import problems
from research.training.prose import BOOK_END, paragraphs

PACKAGE = Path(__file__).parents[2] / "src" / "lz_penalty" / "bundled_model"
EOT, PAD, THINK, END_THINK = "<|endoftext|>", "<|pad|>", "<think>", "</think>"
VOCAB = 4096
HELDOUT_BOOKS, HELDOUT_GSM8K, PROMPTS, PASSAGES, PASSAGE_TOKENS = 14, 500, 256, 64, 1024
PROVENANCE = (
    "Project Gutenberg texts (public domain in the USA), from the GitHub repository rcdm-uga/Gutenberg_Text "
    "at a0b16d3; books held out of training, cut in mid-text by training/prepare.py"
)
# Turns have the form of the training problems, so that the model works in a chat server.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}<|endoftext|>"
    "{% else %}{{ 'Question: ' + message['content'] + '\n' }}{% endif %}{% endfor %}"
)


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="folder with the two xz files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, for train.py")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)

    books = read_books(args.source / "gutenberg_prose.txt.xz")
    heldout = choose_heldout(books, rng)
    gsm8k = read_gsm8k(args.source / "gsm8k_train.jsonl.xz", rng)
    print(f"{len(books)} books of prose, {len(heldout)} held out; {len(gsm8k)} GSM8K training problems")

    train_books = [book for i, book in books.items() if i not in heldout]
    sample = rng.sample(train_books, len(train_books) // 3) + gsm8k[HELDOUT_GSM8K:]
    sample += [problem_text(p) for p in problems.generate(0, 20_000)]
    tokenizer = train_tokenizer(sample)
    save_tokenizer(tokenizer, args.out)

    arrays = {
        "prose_train": train_books,
        "prose_heldout": [books[i] for i in heldout],
        "gsm8k_train": gsm8k[HELDOUT_GSM8K:],
        "gsm8k_heldout": gsm8k[:HELDOUT_GSM8K],
    }
    for name, texts in arrays.items():
        ids = tokenize(tokenizer, texts)
        size = save_array(args.out / f"{name}.u16.xz", ids)
        n_bytes = sum(len(text.encode()) for text in texts)
        print(f"{name}: {len(ids):,} tokens, {n_bytes / len(ids):.2f} bytes per token, {size / 1e6:.1f} MB")

    write_prompts(tokenizer, {i: books[i] for i in heldout}, rng)
    write_passages(tokenizer, {i: books[i] for i in heldout}, rng)


def read_books(path: Path) -> dict[int, str]:
    """Return the prose of each book, keyed by its number in the file; verse and plays are left out."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        raw = file.read().split(BOOK_END)
    prose = {i: "\n\n".join(paragraphs(book)) for i, book in enumerate(raw)}
    return {i: text for i, text in prose.items() if len(text) > 0.3 * len(raw[i])}


def choose_heldout(books: dict[int, str], rng: random.Random) -> list[int]:
    """Choose whole books that share almost no paragraphs with another book (such as another edition)."""
    owners: dict[int, set[int]] = {}
    for i, book in books.items():
        for key in long_paragraphs(book):
            owners.setdefault(key, set()).add(i)
    chosen: list[int] = []
    for i in rng.sample(sorted(books), len(books)):
        keys = long_paragraphs(books[i])
        shared = sum(len(owners[key]) > 1 for key in keys)
        if len(books[i]) > 150_000 and shared <= 0.001 * len(keys):
            chosen.append(i)
        if len(chosen) == HELDOUT_BOOKS:
            return sorted(chosen)
    raise ValueError(f"fewer than {HELDOUT_BOOKS} books can be held out")


def long_paragraphs(book: str) -> list[int]:
    """Return a hash of each paragraph that is too long to recur by chance."""
    return [hash(re.sub(r"\W+", "", p)[:200].lower()) for p in book.split("\n\n") if len(p) > 100]


def read_gsm8k(path: Path, rng: random.Random) -> list[str]:
    """Return GSM8K's training problems in the form of the generated ones, shuffled."""
    texts = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            steps, _, answer = re.sub(r"<<.*?>>", "", row["answer"]).partition("####")
            numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps.strip().split("\n"), 1))
            texts.append(
                f"Question: {row['question'].strip()}\n{THINK}\n{numbered}\n{END_THINK}\nAnswer: {answer.strip()}"
            )
    rng.shuffle(texts)
    return texts


def problem_text(problem: problems.Problem) -> str:
    """Return a problem as the model sees it in training."""
    return problems.prompt(problem) + problem.solution


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train byte-level BPE with single digits. The think marks are tokens, but not special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 2,
        special_tokens=[EOT, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((t.replace(THINK, "").replace(END_THINK, "") for t in texts), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in (THINK, END_THINK)])
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCAB}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the two files that AutoTokenizer reads."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOT,
        "eos_token": EOT,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def tokenize(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Return the tokens of all texts as uint16, each text followed by the end token."""
    end = [tokenizer.token_to_id(EOT)]
    parts = []
    for start in range(0, len(texts), 64):
        for encoding in tokenizer.encode_batch(texts[start : start + 64]):
            parts.append(np.array(encoding.ids + end, dtype=np.uint16))
    return np.concatenate(parts)


def save_array(path: Path, ids: np.ndarray) -> int:
    """Write tokens with LZMA parameters for two-byte values; return the size."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
    path.write_bytes(lzma.compress(ids.tobytes(), format=lzma.FORMAT_XZ, filters=filters))
    return path.stat().st_size


def write_prompts(tokenizer: Tokenizer, books: dict[int, str], rng: random.Random) -> None:
    """Cut prompts that start with a sentence and stop in the middle of one."""
    prompts: list[dict[str, Any]] = []
    while len(prompts) < PROMPTS:
        index = sorted(books)[len(prompts) % len(books)]
        book, length = books[index], rng.randint(32, 64)
        start = rng.randrange(len(book) // 20, len(book) - 4000)
        sentence = re.compile(r"(?<=[.!?] )[A-Z]|(?<=\n\n)[A-Z\"]").search(book, start)
        if sentence is None or book.startswith(("CHAPTER", "BOOK", "PART"), sentence.start()):
            continue
        start = sentence.start()
        encoding = tokenizer.encode(book[start : start + 1000])
        text = book[start : start + encoding.offsets[length][0]]
        if (
            re.fullmatch(r"(?s).*[a-z]", text)
            and re.match(r" [a-z]", book[start + len(text) :])
            and "\n" not in text[-80:]
        ):
            prompts.append({"book": index, "offset": start, "text": text})
    data = {
        "provenance": PROVENANCE,
        "books": {
            i: {"sha256": hashlib.sha256(book.encode()).hexdigest()[:16], "opening": book[:120]}
            for i, book in books.items()
        },
        "prompts": prompts,
    }
    (PACKAGE / "prompts.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_passages(tokenizer: Tokenizer, books: dict[int, str], rng: random.Random) -> None:
    """Cut longer passages, to measure how well a model or a penalty fits human text."""
    passages: list[str] = []
    while len(passages) < PASSAGES:
        book = books[sorted(books)[len(passages) % len(books)]]
        start = book.find("\n\n", rng.randrange(len(book) - 20_000)) + 2
        encoding = tokenizer.encode(book[start : start + 12_000])
        passages.append(book[start : start + encoding.offsets[PASSAGE_TOKENS][0]])
    with lzma.open(PACKAGE / "passages.txt.xz", "wt", encoding="utf-8") as file:
        file.write(BOOK_END.join(passages))


if __name__ == "__main__":
    main()
