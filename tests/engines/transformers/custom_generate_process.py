"""Generates in a process that has the model, a `custom_generate` folder, and no package but those that it may need.

    python custom_generate_process.py TASK.json RESULT.json

The task has `folder`, `model`, `missing` (modules that cannot be imported), `options` and `calls`: for each the ids, the mask
and the `lz_*` fields. The result has for each call its tokens, or its error.
"""

import json
import sys
from pathlib import Path


def main(task, result):
    """Run the calls of a task."""
    given = json.loads(Path(task).read_text())
    for name in given["missing"]:
        sys.modules[name] = None  # what imports it gets an ImportError
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32).eval()
    done = []
    for call in given["calls"]:
        options = given["options"] | call["fields"]
        ids, mask = torch.tensor(call["ids"]), torch.tensor(call["mask"])
        try:
            rows = model.generate(ids, attention_mask=mask, custom_generate=given["folder"], **options)
            done.append({"tokens": rows[:, ids.shape[1] :].tolist()})
        except Exception as error:
            done.append({"error": type(error).__name__, "bases": [one.__name__ for one in type(error).__mro__]})
            done[-1]["message"] = str(error)
    ours = sys.modules.get("lz_penalty")
    Path(result).write_text(json.dumps({"done": done, "lz_penalty": getattr(ours, "__file__", None)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
