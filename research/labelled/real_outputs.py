"""Write outputs of real models with vLLM: `python -m research.labelled.real_outputs MODEL --code FILE --chat FILE --out FILE`.

Three kinds of output, in the order of the prompts:

    code     a beginning of a file is continued greedily: `code_prompts`, and the prompts of `--code`
    chat     an instruction of `--chat` is answered greedily
    sampled  an instruction is answered at temperature 0.8, top-p 0.95

The cap of an output is 384, 640 or 1,024 tokens, in turn. Each line of the result has the model, the kind, the prompt, the
cap, how the output ended (`stop` or `length`), and the text. The file is committed with its labels, because another machine
may round differently and write other texts.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.study._offline.files import read_lines
from lz_penalty.evaluation.study._offline.writer import chat_ids, text_ids
from research.labelled.code_prompts import PROMPTS

CAPS = (384, 640, 1_024)


def prompts(tokenizer: Any, given: argparse.Namespace) -> Iterator[tuple[str, str, list[int]]]:
    """Yield the kind, the name and the token ids of every prompt."""
    for number, text in enumerate(PROMPTS):
        yield "code", f"code-{number}", text_ids(tokenizer, text)
    for record in read_lines(given.code)[: given.limit]:
        yield "code", record["task_id"], text_ids(tokenizer, record["prompt"])
    for kind in ("chat", "sampled"):
        for record in read_lines(given.chat)[: given.limit]:
            yield kind, record["id"], chat_ids(tokenizer, record["prompt"])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder in Hugging Face's layout")
    parser.add_argument("--code", type=Path, required=True, help="JSON lines with task_id and prompt (HumanEval)")
    parser.add_argument("--chat", type=Path, required=True, help="JSON lines with id and prompt")
    parser.add_argument("--limit", type=int, default=1_000, help="at most so many prompts of each file")
    parser.add_argument("--kinds", nargs="+", default=["code", "chat", "sampled"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=96)
    given = parser.parse_args()
    from vllm import LLM, SamplingParams

    llm = LLM(given.model, dtype="bfloat16", max_model_len=2_048, max_num_seqs=given.batch, enforce_eager=True, seed=0)
    asked = [one for one in prompts(llm.get_tokenizer(), given) if one[0] in given.kinds and len(one[2]) < 1_000]
    params = [
        SamplingParams(
            temperature=0.8 if kind == "sampled" else 0.0,
            top_p=0.95 if kind == "sampled" else 1.0,
            max_tokens=CAPS[number % len(CAPS)],
            seed=number,
        )
        for number, (kind, _, _) in enumerate(asked)
    ]
    outputs = llm.generate([{"prompt_token_ids": ids} for _, _, ids in asked], params)
    with lzma.open(given.out, "wt", encoding="utf-8") as file:
        for (kind, name, _), asked_for, output in zip(asked, params, outputs, strict=True):
            written = output.outputs[0]
            row = {
                "model": Path(given.model).name,
                "kind": kind,
                "prompt": name,
                "cap": asked_for.max_tokens,
                "finish": written.finish_reason,
                "text": written.text,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
