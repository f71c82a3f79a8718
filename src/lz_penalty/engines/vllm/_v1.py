"""State for vLLM's V1 runner: the histories of the batch on the device, and no copy per step.

    history  [slots, capacity]   on the device; a slot belongs to a request while it is in the batch
    fields   [3, rows]           slot, length and newest token of each row, where the device can read them; see `Staging`
    table    [rows, 14]          settings row of each row, zeros without the penalty; sent when the batch changes, and
                                 rewritten when a request with a policy comes to another section

One decoding step, from the class that vLLM loads to the kernel:

    vLLM calls LZPenaltyLogitsProcessor.apply(logits)                       _processor.py
      -> BatchState.apply(logits)                                           here

    In Python -> _apply(logits)
           _take_in_c or _take_in_python   take the new tokens into the fields; the latter also loads histories
           _read_tokens                    with a policy only: each Generation reads its token; other section, other row
           penalise(...)                   lz_penalty.ops.prepare_lz_penalty -> kernels.triton
           _after_penalty                  with a policy only: shadow mode is compared and undone, tokens are forced
           _let_c_launch                   without a policy: from the next step on, C may do it

    In C -> launch(logits, stream)                                          _c_step.py, vllm_step.c
           reads the newest token of vLLM's live output lists into the fields,
           launches the kernel `find` on a side stream: it stores the token in the history and finds the penalties,
             while the model still runs,
           launches the kernel `lower` after the model: it lowers the logits.

When requests come, go or move, vLLM calls `update_state` first, and the op is prepared again. On a GPU, the steps after that
launch these kernels:

    step 1            Python   `row_kernel` does both parts in one launch
    step 2            Python   `find` and `lower`
    step 3 and later  C        `find` and `lower`; a step in which an output has not gained exactly one token is in Python
    with a policy     Python   `row_kernel` in every step; also without a C compiler
    a window > 2048   Python   `store`, `gather` and `write` in every step, with or without a policy
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from lz_penalty import _packing as col
from lz_penalty._packing import PackedConfig
from lz_penalty.engines._device import Shadow, force_, padded, send, store
from lz_penalty.engines._generation import Generation
from lz_penalty.engines._requests import Settings, SettingsReader
from lz_penalty.engines.vllm._c_step import LENGTH, NEWEST, SLOT, NewestReader, newest_reader
from lz_penalty.engines.vllm._generations import GenerationRegistry
from lz_penalty.engines.vllm._staging import Staging
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["BatchState"]


class Request(NamedTuple):
    """A penalised request in the batch. `output` is vLLM's own list, which grows. `generation` is `None` without a policy."""

    slot: int
    settings: Settings
    prompt: list[int]
    output: list[int]
    generation: Generation | None

    def context(self) -> list[int]:
        """Return the trailing tokens that can matter."""
        reach = max(1, self.settings.reach)  # 0: a policy without any penalty
        tokens = self.output[-reach:]
        if self.settings.include_prompt and len(tokens) < reach:
            tokens = self.prompt[len(tokens) - reach :] + tokens
        return tokens


class BatchState:
    """The batch of the V1 runner: `update` applies its changes, `apply` penalises its logits.

    Args:
        settings: reads the settings of requests.
        rows: the largest batch.
        max_model_len: the longest context.
        device: where the logits are.
        registry: starts and counts the generations of the engine.
        in_c: whether C takes the new tokens and, without a policy, launches the kernels.
    """

    def __init__(
        self,
        settings: SettingsReader,
        rows: int,
        max_model_len: int,
        device: torch.device,
        registry: GenerationRegistry,
        in_c: bool,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._in_c = in_c
        self._shadow = Shadow(device)
        self._shadowed: list[Generation] = []  # of the rows in shadow mode
        self._capacity = settings.capacity(max_model_len)
        self._history = torch.zeros((rows + 1, self._capacity), dtype=torch.int32, device=device)
        self._no_request = (rows, 0, -1)  # the fields of a row without the penalty: no request has the last slot
        self._staging = Staging(np.tile(np.array(self._no_request, dtype=np.int32)[:, None], rows), device)
        self._fields = self._staging.current
        self._seen = np.zeros(rows, dtype=np.int32)  # tokens of each row's output that were taken
        self._table = np.zeros((rows, col.COLUMNS), dtype=np.int32)
        self._requests: list[Request | None] = [None] * rows
        self._free_slots = list(range(rows))
        self._batch_size = 0
        self._unloaded: set[int] = set()  # slots of requests whose history has not been sent yet
        self._rows = np.zeros(0, dtype=np.int32)
        self._outputs: list[list[int]] = []
        self._generations: list[tuple[int, list[int], Generation]] = []  # row and output of requests with a policy
        # What follows is made again when the batch has changed.
        self._penalise: Callable[..., Any] | None = (
            None  # `None`: no step since `update`, which has advanced the staging
        )
        self._sent = torch.zeros(0)  # the table on the device
        self._reader: NewestReader | None = None
        self._launch: Callable[[int, int], int] | None = None  # a whole step in C
        self._stream: Callable[[], int] = int
        self._device_fields: list[list[torch.Tensor]] = []  # of each buffer, as the device reads them
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with an empty row that belongs to no request."""
        slots, lengths, newest = self._staging.as_device_reads(1)[0]
        logits = torch.zeros((1, 1), device=self._history.device)
        ahead = self._staging.is_read_in_place
        self._settings.warm_up(logits, self._history, lengths, None, slots, None, None, newest, ahead=ahead)

    # ------------------------------------------------------------ the batch changes

    def update(self, update: BatchUpdate) -> None:
        """Apply vLLM's list of requests that came, went or moved. Outputs are not read: their last ids may be placeholders."""
        self._fields = self._staging.advance()
        for row in update.removed:
            self._remove(row)
        for row, params, prompt, output in update.added:
            self._remove(row)
            self._add(row, params, prompt or [], output)
        for a, b, direction in update.moved:
            self._move(a, b, direction == MoveDirectionality.SWAP)
        self._batch_size = update.batch_size
        self._rows = np.array([row for row, one in enumerate(self._requests) if one is not None], dtype=np.int32)
        self._outputs = [one.output for one in self._requests if one is not None]
        self._device_fields = self._staging.as_device_reads(self._batch_size)
        self._reader = None
        if self._in_c:
            buffers, turn = self._staging.buffers, self._staging.turn
            self._reader = newest_reader(self._outputs, self._rows, self._seen, self._capacity, buffers, turn)
        self._penalise = self._launch = None
        self._generations = [
            (row, one.output, one.generation)
            for row, one in enumerate(self._requests)
            if one is not None and one.generation is not None
        ]
        self._shadowed = [generation for _, _, generation in self._generations if generation.shadow]
        self._shadow.choose([row for row, _, generation in self._generations if generation.shadow])
        self._registry.collect()

    def _add(self, row: int, params: Any, prompt: list[int], output: list[int]) -> None:
        slot = self._free_slots[-1]
        settings = self._settings.read(params.extra_args, slot)
        if settings is not None:
            self._free_slots.pop()
            generation = self._registry.start(settings, params, prompt, slot) if settings.asked else None
            self._requests[row] = Request(slot, settings, prompt, output, generation)
            self._fields[SLOT, row] = slot
            self._table[row] = generation.settings_row if generation else settings.settings_row
            self._unloaded.add(slot)

    def _remove(self, row: int) -> None:
        request = self._requests[row]
        if request is not None:
            if request.generation is not None:
                self._registry.leave(request.slot, request.generation)
            self._free_slots.append(request.slot)
            self._unloaded.discard(request.slot)
            self._requests[row] = None
            self._fields[:, row] = self._no_request
            self._table[row] = 0

    def _move(self, a: int, b: int, swap: bool) -> None:
        if not swap:
            self._remove(b)
        if self._requests[a] is None and self._requests[b] is None:
            return
        self._requests[a], self._requests[b] = self._requests[b], self._requests[a]
        self._fields[:, [a, b]] = self._fields[:, [b, a]]
        self._seen[[a, b]] = self._seen[[b, a]]
        self._table[[a, b]] = self._table[[b, a]]

    def outputs_without_counts(self) -> list[tuple[int, list[int]]]:
        """Return slot and output of every penalised request whose policy, if any, does not count loops itself."""
        return [
            (one.slot, one.output)
            for one in self._requests
            if one is not None and (one.generation is None or not one.generation.asked.looks_for_runs)
        ]

    # ------------------------------------------------------------ a step

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Penalise the logits of the batch in place."""
        launch = self._launch
        if launch is None or logits.shape[0] != self._batch_size or launch(logits.data_ptr(), self._stream()) <= 0:
            self._apply(logits)
        return logits

    def _apply(self, logits: torch.Tensor) -> None:
        """Do a step that C does not do: see the list at the top."""
        if not self._outputs:
            self._registry.collect()
            return
        if logits.size(0) != self._batch_size:
            raise LZPenaltyError(
                f"vLLM's V1 runner gave {logits.size(0)} rows of logits for {self._batch_size} requests: the LZ penalty "
                "cannot tell which row is whose. Speculative decoding needs the V2 runner."
            )
        if not self._take_in_c():
            self._take_in_python()
        if self._generations:
            self._read_tokens()
            self._shadow.save(logits)
        self._staging.publish()
        slots, lengths, newest = self._device_fields[self._staging.turn[0]]
        given = (logits, self._history, lengths, None, slots, None, None, newest)
        if self._penalise is None:
            ahead = (
                self._reader is not None  # C can read the tokens
                and not self._generations  # a policy reads them on the host before the penalty
                and self._staging.is_read_in_place  # a copy of the fields would not be ordered before a side stream
            )
            self._penalise = prepare_lz_penalty(*given, config=self._pack(), ahead=ahead)
        self._penalise(*given)
        if self._generations:
            self._after_penalty(logits)
        elif self._launch is None:
            self._let_c_launch()

    def _take_in_c(self) -> bool:
        """Let C take the new tokens if the batch is the same and every output has gained one; return whether that is so."""
        taken = 0 if self._penalise is None or self._reader is None else self._reader.take()
        if taken < 0:
            raise placeholder()
        return taken == 1

    def _let_c_launch(self) -> None:
        """Let C do the next steps, if it can launch the op."""
        launches = getattr(self._penalise, "ahead", None)
        if launches is not None and self._reader is not None:
            self._launch, self._stream = self._reader.launching(launches), launches.stream

    def _take_in_python(self) -> None:
        """Take what the outputs have gained: one token each, or none while a request is prefilled."""
        if self._penalise is not None:  # else `update` has just advanced
            self._fields = self._staging.advance()
        if self._unloaded:
            self._load(
                [row for row, one in enumerate(self._requests) if one is not None and one.slot in self._unloaded]
            )
        fields, rows, outputs = self._fields, self._rows, self._outputs
        fresh = np.fromiter(map(len, outputs), np.int64, len(outputs)) - self._seen[rows]
        fields[NEWEST] = -1
        one = (fresh == 1) & (fields[LENGTH, rows] < self._capacity)
        tokens = [output[-1] for output, is_one in zip(outputs, one.tolist(), strict=True) if is_one]
        if min(tokens, default=0) < 0:
            raise placeholder()
        fields[NEWEST, rows[one]] = tokens
        fields[LENGTH, rows[one]] += 1
        self._seen[rows[one]] += 1
        # Load again where a slot is full, or where an output has lost tokens (vLLM takes them back when a transfer of cache
        # blocks fails) or gained several.
        self._load(rows[(fresh != 0) & ~one].tolist())

    # ------------------------------------------------------------ requests with a policy

    def _read_tokens(self) -> None:
        """Let every generation read its new token, and send the settings rows of those that come to another section."""
        self._registry.collect()
        changed = False
        for row, output, generation in self._generations:
            if generation.read(output) and not np.array_equal(generation.settings_row, self._table[row]):
                self._table[row] = generation.settings_row
                changed = True
        if changed and self._penalise is not None:
            self._sent.copy_(send(self._table[: self._batch_size], self._sent.device))

    def _pack(self) -> PackedConfig:
        """Return the settings of the batch, with the sizes of the largest section.

        With these sizes the op stays prepared when settings rows change. It also stores the newest tokens in every section,
        which it does not do where no row has anything to compute.
        """
        settings_rows = self._table[: self._batch_size]
        self._sent = send(settings_rows.copy(), self._history.device)
        largest = np.concatenate([settings_rows, *[generation.settings_rows for *_, generation in self._generations]])
        return self._settings.pack(largest, self._sent)

    def _after_penalty(self, logits: torch.Tensor) -> None:
        """Undo the penalty of rows in shadow mode, and force the tokens that must come."""
        flags = self._shadow.restore(logits)
        if flags is not None:
            for i, generation in enumerate(self._shadowed):
                generation.note(flags, i)
        for row, _, generation in self._generations:
            if generation.forced is not None:
                force_(logits, row, generation.forced, "overridden" if generation.overrides_masks else "obeyed")

    # ------------------------------------------------------------ now and then

    def _load(self, rows: list[int]) -> None:
        """Send the whole history of these rows, in one pinned block."""
        if not rows:
            return
        requests = [(row, request) for row in rows if (request := self._requests[row]) is not None]
        contexts = [array("i", request.context()) for _, request in requests]
        block = padded(contexts)
        if block.size and block.min() < 0:
            raise placeholder()
        for (row, request), context in zip(requests, contexts, strict=True):
            self._fields[:, row] = request.slot, len(context), -1
            self._seen[row] = len(request.output)
            self._unloaded.discard(request.slot)
        store(self._history, [request.slot for _, request in requests], block)


def placeholder() -> LZPenaltyError:
    """Return the error for an output id that vLLM has not filled in."""
    return LZPenaltyError(
        "vLLM gave an output id of -1, a placeholder for a token that it has not copied to the host: the LZ penalty "
        "cannot see the text. Use --no-async-scheduling, or report the way in which you started vLLM."
    )
