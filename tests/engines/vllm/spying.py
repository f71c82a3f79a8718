"""A processor that checks every step inside the engine: rows without the penalty stay bit-identical, the others equal the
reference. vLLM's own helper tells which request a row belongs to; the plug-in's state is not used."""

import torch
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from lz_penalty.engines.server import server_settings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm._ending import Ending
from lz_penalty.engines.vllm._startup import special_tokens_of, tokenizer_of
from tests.support.policy_truth import Truth


class SpyingProcessor(LZPenaltyLogitsProcessor):
    """The processor with the check. For the V1 runner only."""

    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)
        self.truth = Truth(tokenizer_of(vllm_config.model_config), special_tokens_of(vllm_config.model_config))
        self.rows = {}
        self.is_schedulers = vllm_config.parallel_config.distributed_executor_backend == "uni"

    def update_state(self, batch_update):
        process_dict_updates(self.rows, batch_update, lambda *given: given)
        super().update_state(batch_update)

    def apply(self, logits):
        before = logits.clone()
        after = super().apply(logits)
        for row, (params, prompt, output) in self.rows.items():
            output = self.output_of(row, list(output))
            asked = server_settings().settings_of(params.extra_args)
            self.truth.stop_adds = int(Ending(params, self.is_schedulers, None).by_run)
            end = int(after[row].argmax())  # which token that is, is checked outside
            self.truth.check_row(before[row], after[row], list(prompt), output, asked, end)
            if asked is None:
                assert torch.equal(before[row].view(torch.int32), after[row].view(torch.int32))
        return after

    def output_of(self, row, output):
        """Return all tokens of the row's output."""
        return output
