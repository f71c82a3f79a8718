"""A step of vLLM's V1 runner: `V1State` keeps the histories of the batch on the device and penalises its logits.

    history  [slots, capacity]   on the device; a slot belongs to a request while the request is in the batch
    fields   [3, rows]           slot, length and newest token of each row, where the device can read them; see `Staging`
    table    [rows, 16]          settings row of each row, zeros without the penalty; sent when the batch changes, and
                                 rewritten when a request with a policy comes to another section

One decoding step, from the class that vLLM loads to the kernel:

    If requests come, go or move, vLLM first calls LZPenaltyLogitsProcessor.update_state(batch_update)     _processor.py
      -> V1State.update            gives slots to new requests; the op must be prepared again              here

    vLLM calls InputBatch.update_async_output_token_ids(), which is wrapped
      -> DeviceTokens.before_sampling   tells where the newest tokens are: in vLLM's lists, or on the device only. In the
                                        second case, the lists end with -1, and nothing waits for the tokens   _no_wait.py

    vLLM calls LZPenaltyLogitsProcessor.apply(logits)                                                      _processor.py
      -> V1State.apply(logits)     does the step in C or in Python                                         here

    A step in Python: _apply(logits), which calls
        _take_in_c or _take_in_python   write the new tokens into the fields; `_take_in_python` also loads whole histories
        _read_tokens                    with a policy: each `Generation` reads its new token. A request that comes to another
                                        section gets the settings row of that section
        prepare_lz_penalty              only in the first step after a change of the batch: check the arrays, choose the backend
        self._penalise(...)             the function that `ops.prepare_lz_penalty` has returned. On a GPU, it launches the
                                        kernels; see `kernels/triton/__init__.py`
        _after_penalty                  with a policy: undo the penalty of rows in shadow mode, and force tokens
        _let_c_launch                   without a policy: let C do the next steps, if it can

    A step in C: lz_take_and_launch(logits, stream, sampled, arrived)                     _c_step.py, native/vllm_step.c
        writes the newest token of each of vLLM's output lists into the fields, or its row among the tokens on the device
        if the device is through with the previous step, and the host did not wait for that: it is ahead of the host
            launches `row_kernel` after the model: one launch takes the host less time than two
        else
            launches `find_kernel` on a side stream: while the model still runs, it stores the tokens in the histories and
                finds which logits are to be lowered. If the tokens are on the device, it waits for them there
            launches `lower_kernel` after the model: it lowers them

If a request has a policy, Python launches the kernels for the whole batch. After a change of the batch, these kernels are
launched on a GPU:

    no request is penalised    every step         nothing
    no request has a policy    step 1             Python   `row_kernel`
                               step 2             Python   `find_kernel` and `lower_kernel`
                               step 3 and later   C        `find_kernel` and `lower_kernel`, or `row_kernel`. If an output
                                                           has gained no token or several, Python does this step.
                                                           If kernels must be compiled, C begins up to two steps later
    some request has a policy  every step         Python   `row_kernel`
    no C compiler, or memory cannot be pinned
                               every step         Python   `row_kernel`
    a window > 2048            every step         Python   `store_kernel`, `gather_kernel` and `write_kernel`
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
from lz_penalty.engines.vllm._no_wait import DeviceTokens
from lz_penalty.engines.vllm._registry import GenerationRegistry
from lz_penalty.engines.vllm._staging import Staging
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["V1State"]


class Request(NamedTuple):
    """A request in the batch that is penalised or has a policy.

    `output` is vLLM's own list, to which vLLM appends tokens. `generation` is `None` without a policy.
    """

    slot: int
    settings: Settings
    prompt: list[int]
    output: list[int]
    generation: Generation | None

    def context(self) -> list[int]:
        """Return the trailing tokens that can matter to the penalty."""
        reach = max(1, self.settings.reach)  # it is 0 for a policy that penalises no section
        tokens = self.output[-reach:]
        if self.settings.include_prompt and len(tokens) < reach:
            tokens = self.prompt[len(tokens) - reach :] + tokens
        return tokens


class V1State:
    """The batch of the V1 runner: `update` applies its changes, `apply` penalises its logits.

    Args:
        settings: reads the settings of requests.
        rows: the largest batch.
        max_model_len: the longest context.
        device: where the logits are.
        registry: starts and counts the generations of the engine.
        in_c: whether C takes the new tokens and, without a policy, launches the kernels.
        tokens: the newest tokens, where only the device has them.
    """

    def __init__(
        self,
        settings: SettingsReader,
        rows: int,
        max_model_len: int,
        device: torch.device,
        registry: GenerationRegistry,
        in_c: bool,
        tokens: DeviceTokens,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._registry = registry
        self._in_c = in_c
        self._shadow = Shadow(device)
        self._shadowed: list[Generation] = []  # of the rows in shadow mode, in their order
        self._capacity = settings.capacity(max_model_len)
        self._history = torch.zeros((rows + 1, self._capacity), dtype=torch.int32, device=device)
        self._no_request = (rows, 0, -1)  # the fields of a row without the penalty: no request has the last slot
        self._staging = Staging(np.tile(np.array(self._no_request, dtype=np.int32)[:, None], rows), device)
        self._fields = self._staging.current  # what Python writes; C may have gone to the next buffer since
        self._seen = np.zeros(rows, dtype=np.int32)  # by row: how many tokens of the output were taken
        self._table = np.zeros((rows, col.COLUMNS), dtype=np.int32)
        self._requests: list[Request | None] = [None] * rows
        self._free_slots = list(range(rows))
        self._batch_size = 0
        self._unloaded: set[int] = set()  # slots of requests whose history has not been sent yet
        # What follows is for the current batch: `update` and the first step after it set it.
        self._rows = np.zeros(0, dtype=np.int32)  # of the requests
        self._outputs: list[list[int]] = []  # of these rows
        self._generations: list[tuple[int, list[int], Generation]] = []  # row and output of requests with a policy
        self._device_fields: list[list[torch.Tensor]] = []  # the fields in each buffer, as the device reads them
        self._sent = torch.zeros(0)  # the table on the device
        self._reader: NewestReader | None = None  # takes the new tokens in C
        self._penalise: Callable[..., Any] | None = None  # the prepared op; `None` until the first step after `update`
        self._launch: Callable[[int, int, int, int], int] | None = None  # does a step in C; `None`: Python does it
        self._stream: Callable[[], int] = int  # returns the handle of the current stream; set with `_launch`
        self._no_tokens = torch.zeros((1, 1), dtype=torch.int32, device=device)
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with an empty row that belongs to no request."""
        slots, lengths, newest = self._staging.as_device_reads(1)[0]
        logits = torch.zeros((1, 1), device=self._history.device)
        ahead = self._staging.is_read_in_place
        given = (logits, self._history, lengths, None, slots, None, None, newest, *self._sampled())
        self._settings.warm_up(*given, ahead=ahead)

    def _sampled(self) -> tuple[torch.Tensor, ...]:
        """Return the op's last argument, the tokens on the device; nothing if the lists always have the tokens."""
        if not self._tokens.is_used:
            return ()
        return (self._no_tokens if self._tokens.sampled is None else self._tokens.sampled,)

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
        requests = [(row, request) for row, request in enumerate(self._requests) if request is not None]
        self._rows = np.array([row for row, _ in requests], dtype=np.int32)
        self._outputs = [request.output for _, request in requests]
        self._device_fields = self._staging.as_device_reads(self._batch_size)
        self._reader = None
        if self._in_c:
            buffers, turn = self._staging.buffers, self._staging.turn
            self._reader = newest_reader(self._outputs, self._rows, self._seen, self._capacity, buffers, turn)
        self._penalise = self._launch = None
        self._generations = [
            (row, request.output, request.generation) for row, request in requests if request.generation is not None
        ]
        self._tokens.policies = bool(self._generations)
        self._shadowed = [generation for _, _, generation in self._generations if generation.shadow]
        self._shadow.choose([row for row, _, generation in self._generations if generation.shadow])
        self._registry.count_left()

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
                self._registry.note_left(request.slot, request.generation)
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
        launch, tokens = self._launch, self._tokens
        # If C returns 0 or -1, it has taken no token: Python does the step, or raises.
        if (
            launch is None
            or logits.shape[0] != self._batch_size
            or launch(logits.data_ptr(), self._stream(), *tokens.addresses()) <= 0
        ):
            self._apply(logits)
        tokens.end_step()
        return logits

    def _apply(self, logits: torch.Tensor) -> None:
        """Do a step in Python: see the walk at the top."""
        if not self._outputs:
            self._registry.count_left()
            return
        if logits.size(0) != self._batch_size:
            raise LZPenaltyError(
                f"vLLM's V1 runner gave {logits.size(0)} rows of logits for {self._batch_size} requests: the LZ penalty "
                "cannot tell which row is whose. Speculative decoding needs the V2 runner."
            )
        sampled = self._sampled()
        if not self._take_in_c():
            self._take_in_python()
        if self._generations:
            self._read_tokens()
            self._shadow.save(logits)
        self._staging.publish()
        slots, lengths, newest = self._device_fields[self._staging.turn[0]]
        starts = tail_ids = tail_lengths = None
        given = (logits, self._history, lengths, starts, slots, tail_ids, tail_lengths, newest, *sampled)
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
        """Let C take the new tokens; return whether it did: the batch is the same, and every output has gained one token."""
        on_device = self._tokens.sampled is not None
        taken = 0 if self._penalise is None or self._reader is None else self._reader.take(on_device)
        if taken < 0:
            raise _placeholder_error()
        return taken == 1

    def _take_in_python(self) -> None:
        """Take what the outputs have gained: one token each, or none while a request is prefilled."""
        if self._penalise is not None:  # else `update` has just advanced
            self._fields = self._staging.advance()
        if self._unloaded:
            requests = enumerate(self._requests)
            self._load([row for row, request in requests if request is not None and request.slot in self._unloaded])
        fields, rows, outputs = self._fields, self._rows, self._outputs
        fresh = np.fromiter(map(len, outputs), np.int64, len(outputs)) - self._seen[rows]
        fields[NEWEST] = -1
        takes_one = (fresh == 1) & (fields[LENGTH, rows] < self._capacity)
        taking = rows[takes_one]
        fields[NEWEST, taking] = self._newest(
            taking, [output for output, takes in zip(outputs, takes_one.tolist(), strict=True) if takes]
        )
        fields[LENGTH, taking] += 1
        self._seen[taking] += 1
        # Load again where a slot is full, or where an output has lost tokens (vLLM takes them back when a transfer of cache
        # blocks fails) or gained several.
        again = rows[(fresh != 0) & ~takes_one].tolist()
        if again:
            self._tokens.ids_now()
        self._load(again)

    def _newest(self, rows: np.ndarray, outputs: list[list[int]]) -> np.ndarray:
        """Return the last token of each output, or -2 - i if only the device has it, as token i of the previous step."""
        newest = np.array([output[-1] for output in outputs], dtype=np.int32)
        if newest.min(initial=0) < 0:
            if self._tokens.sampled is None or any(len(output) > 1 and output[-2] < 0 for output in outputs):
                raise _placeholder_error()
            sources = self._tokens.sources[rows]
            if (sources[newest < 0] < 0).any():
                raise _placeholder_error()
            newest = np.where(newest < 0, -2 - sources, newest)
        return newest

    def _load(self, rows: list[int]) -> None:
        """Send the whole histories of these rows, in one block."""
        if not rows:
            return
        requests = [(row, request) for row in rows if (request := self._requests[row]) is not None]
        contexts = [array("i", request.context()) for _, request in requests]
        block = padded(contexts)
        if block.size and block.min() < 0:
            raise _placeholder_error()
        for (row, request), context in zip(requests, contexts, strict=True):
            self._fields[:, row] = request.slot, len(context), -1
            self._seen[row] = len(request.output)
            self._unloaded.discard(request.slot)
        store(self._history, [request.slot for _, request in requests], block)

    def _pack(self) -> PackedConfig:
        """Send the table, and return the settings of the batch with the largest sizes that any of its sections has.

        With these sizes the prepared op serves every section. An op that was prepared when no row had a penalty would do
        nothing at all: it would not store the newest tokens, and the histories would lack them in the next section.
        """
        settings_rows = self._table[: self._batch_size]
        self._sent = send(settings_rows.copy(), self._history.device)
        largest = np.concatenate([settings_rows, *[generation.settings_rows for *_, generation in self._generations]])
        return self._settings.pack(largest, self._sent)

    def _let_c_launch(self) -> None:
        """Let C do the next steps, if it can launch the op."""
        launches = getattr(self._penalise, "ahead", None)
        if launches is not None and self._reader is not None:
            self._launch, self._stream = self._reader.launching(launches), launches.stream

    # ------------------------------------------------------------ requests with a policy

    def _read_tokens(self) -> None:
        """Let every generation read its new token, and send the settings rows of those that come to another section."""
        self._registry.count_left()
        changed = False
        for row, output, generation in self._generations:
            if generation.read(output) and not np.array_equal(generation.settings_row, self._table[row]):
                self._table[row] = generation.settings_row
                changed = True
        if changed and self._penalise is not None:  # else `_pack` sends the table
            self._sent.copy_(send(self._table[: self._batch_size], self._sent.device))

    def _after_penalty(self, logits: torch.Tensor) -> None:
        """Undo the penalty of rows in shadow mode, and force the tokens that generations demand."""
        flags = self._shadow.restore(logits)
        if flags is not None:
            for i, generation in enumerate(self._shadowed):
                generation.note(flags, i)
        for row, _, generation in self._generations:
            if generation.forced is not None:
                force_(logits, row, generation.forced, "overridden" if generation.overrides_masks else "obeyed")


def _placeholder_error() -> LZPenaltyError:
    """Return the error for an output id that vLLM has not filled in."""
    return LZPenaltyError(
        "vLLM gave an output id of -1, a placeholder for a token that it has not copied to the host: the LZ penalty "
        "cannot see the text. If LZ_PENALTY_SERVER sets wait_for_tokens to false, leave it out. Otherwise use "
        "--no-async-scheduling, or report how you started vLLM."
    )
