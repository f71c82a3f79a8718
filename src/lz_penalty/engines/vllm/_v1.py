"""State for vLLM's V1 runner: the histories of the batch on the device, and no copy per step.

vLLM hands out each request's output as a live list, and a step appends one token to each. A step leaves three numbers
per row where a kernel can read them; while the model runs, it writes the new token to the history and finds what is to be
changed. Another one lowers the logits behind the model. With policies, and for a step after a change of the batch, one
kernel does both.

    history  [slots, capacity]   on the device; a slot belongs to a request while it is in the batch
    columns  [3, rows]           slot, length and newest token of each row, where the device can read them; see `Staging`
    table    [rows, 9]           settings of each row, zero for rows without the penalty; sent when the batch changes, and
                                 written anew when a request with a policy comes to another section
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
from lz_penalty.engines._output_lists import LENGTH, NEWEST, SLOT, NewestReader, newest_reader
from lz_penalty.engines._requests import RequestSettings, Settings, padded, send, store
from lz_penalty.engines.vllm._following import Followed, Following, force_
from lz_penalty.engines.vllm._shadowing import Shadow
from lz_penalty.engines.vllm._staging import Staging
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["BatchState"]


class Request(NamedTuple):
    """A penalised request in the batch; `output` is vLLM's own list, which grows. `followed`: one with a policy."""

    slot: int
    settings: Settings
    prompt: list[int]
    output: list[int]
    followed: Followed | None

    def context(self) -> list[int]:
        """The trailing tokens that can matter."""
        reach = max(1, self.settings.reach)  # 0: a policy without any penalty
        tokens = self.output[-reach:]
        if self.settings.include_prompt and len(tokens) < reach:
            tokens = self.prompt[len(tokens) - reach :] + tokens
        return tokens


class BatchState:
    """Follows the batch through `update`, and penalises its logits in `apply`.

    Args:
        settings: reads the settings of requests.
        rows: the largest batch.
        max_model_len: the longest context.
        device: where the logits are.
        following: for requests with a policy.
        in_c: whether quiet steps are done in C.
    """

    def __init__(
        self,
        settings: RequestSettings,
        rows: int,
        max_model_len: int,
        device: torch.device,
        following: Following,
        in_c: bool,
    ) -> None:
        self._settings = settings
        self._following = following
        self._in_c = in_c
        self._shadow = Shadow(rows, device)
        self._capacity = settings.capacity(max_model_len)
        self._history = torch.zeros((rows + 1, self._capacity), dtype=torch.int32, device=device)
        self._absent = (rows, 0, -1)  # the column of a row without the penalty: the last history is nobody's
        self._staging = Staging(np.tile(np.array(self._absent, dtype=np.int32)[:, None], rows), device)
        self._columns = self._staging.current
        self._seen = np.zeros(rows, dtype=np.int32)  # tokens of each row's output that were taken
        self._table = np.zeros((rows, col.COLUMNS), dtype=np.int32)
        self._requests: list[Request | None] = [None] * rows
        self._free_slots = list(range(rows))
        self._batch_size = 0
        self._unloaded: set[int] = set()  # slots of requests whose history has not been sent yet
        self._rows = np.zeros(0, dtype=np.int32)
        self._outputs: list[list[int]] = []
        self._followed: list[tuple[int, Request, Followed]] = []  # rows with a policy
        # Made anew when the batch has changed.
        self._penalise: Callable[..., Any] | None = None
        self._sent = torch.zeros(0)  # the table on the device
        self._reader: NewestReader | None = None
        self._launch: Callable[[int, int], int] | None = None  # all of a quiet step, where C can do it
        self._stream: Callable[[], int] = int
        self._fields: list[list[torch.Tensor]] = []
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with an empty row of nobody's."""
        slots, lengths, newest = self._staging.fields(1)[0]
        logits = torch.zeros((1, 1), device=self._history.device)
        ahead = self._staging.is_read_in_place
        self._settings.warm_up(logits, self._history, lengths, None, slots, None, None, newest, ahead=ahead)

    # ------------------------------------------------------------ the batch changes

    def update(self, update: BatchUpdate) -> None:
        """Follow what came, went and moved. Output lists are not read here: their last ids may be placeholders."""
        self._columns = self._staging.advance()
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
        self._fields = self._staging.fields(self._batch_size)
        self._reader = None
        if self._in_c:
            places, turn = self._staging.places, self._staging.turn
            self._reader = newest_reader(self._outputs, self._rows, self._seen, self._capacity, places, turn)
        self._penalise = self._launch = None
        self._followed = [
            (row, one, one.followed) for row, one in enumerate(self._requests) if one is not None and one.followed
        ]
        shadowed = [(row, one.slot) for row, one, followed in self._followed if followed.shadow]
        self._shadow.choose([row for row, _ in shadowed], [slot for _, slot in shadowed])
        self._shadow.collect()

    def _add(self, row: int, params: Any, prompt: list[int], output: list[int]) -> None:
        slot = self._free_slots[-1]
        settings = self._settings.read(params.extra_args, slot)
        if settings is not None:
            self._free_slots.pop()
            followed = Followed(self._following, settings, params, prompt, slot) if settings.asked else None
            self._requests[row] = Request(slot, settings, prompt, output, followed)
            self._columns[SLOT, row] = slot
            self._table[row] = followed.line if followed else settings.line
            self._unloaded.add(slot)

    def _remove(self, row: int) -> None:
        request = self._requests[row]
        if request is not None:
            if request.followed:
                self._shadow.settle(request.slot, request.followed)
            self._free_slots.append(request.slot)
            self._unloaded.discard(request.slot)
            self._requests[row] = None
            self._columns[:, row] = self._absent
            self._table[row] = 0

    def _move(self, a: int, b: int, swap: bool) -> None:
        if not swap:
            self._remove(b)
        if self._requests[a] is None and self._requests[b] is None:
            return
        self._requests[a], self._requests[b] = self._requests[b], self._requests[a]
        self._columns[:, [a, b]] = self._columns[:, [b, a]]
        self._seen[[a, b]] = self._seen[[b, a]]
        self._table[[a, b]] = self._table[[b, a]]

    def outputs(self) -> list[tuple[int, list[int]]]:
        """Slot and output of every penalised request."""
        return [(one.slot, one.output) for one in self._requests if one is not None]

    # ------------------------------------------------------------ a step

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Penalise the logits of the batch in place."""
        launch = self._launch
        if launch is None or logits.shape[0] != self._batch_size or not launch(logits.data_ptr(), self._stream()) > 0:
            self._apply(logits)
        return logits

    def _apply(self, logits: torch.Tensor) -> None:
        """The same, from Python."""
        if not self._outputs:
            self._shadow.collect()
            return
        if logits.size(0) != self._batch_size:
            raise LZPenaltyError(
                f"vLLM's V1 runner gave {logits.size(0)} rows of logits for {self._batch_size} requests: the LZ penalty "
                "cannot tell which row is whose. Speculative decoding needs the V2 runner."
            )
        if not self._quiet_step():
            self._other_step()
        if self._followed:
            self._follow()
            self._shadow.save(logits)
        self._staging.publish()
        slots, lengths, newest = self._fields[self._staging.turn[0]]
        given = (logits, self._history, lengths, None, slots, None, None, newest)
        if self._penalise is None:
            # Policies must see the tokens first; what is copied to the device is ordered on its stream alone.
            ahead = self._reader is not None and not self._followed and self._staging.is_read_in_place
            self._penalise = prepare_lz_penalty(*given, config=self._pack(), ahead=ahead)
        self._penalise(*given)
        if self._followed:
            self._shadow.compare(logits)
            self._force(logits)
        elif self._launch is None:
            self._launch_ahead()

    def _quiet_step(self) -> bool:
        """Take the new tokens if every output has gained one and the batch is as it was; so it is in nearly all steps."""
        taken = 0 if self._penalise is None or self._reader is None else self._reader.take()
        if taken < 0:
            raise placeholder()
        return taken == 1

    def _launch_ahead(self) -> None:
        """Let C do all of the quiet steps to come, once the op can be launched from there."""
        ahead = getattr(self._penalise, "ahead", None)
        if ahead is not None and self._reader is not None:
            self._launch, self._stream = self._reader.launching(ahead), ahead.stream

    def _other_step(self) -> None:
        """Take what the outputs have gained: one token per request, or none while it is prefilled."""
        if self._penalise is not None:
            self._columns = self._staging.advance()
        if self._unloaded:
            self._load(
                [row for row, one in enumerate(self._requests) if one is not None and one.slot in self._unloaded]
            )
        columns, rows, outputs = self._columns, self._rows, self._outputs
        fresh = np.fromiter(map(len, outputs), np.int64, len(outputs)) - self._seen[rows]
        columns[NEWEST] = -1
        one = (fresh == 1) & (columns[LENGTH, rows] < self._capacity)
        tokens = [output[-1] for output, is_one in zip(outputs, one.tolist(), strict=True) if is_one]
        if min(tokens, default=0) < 0:
            raise placeholder()
        columns[NEWEST, rows[one]] = tokens
        columns[LENGTH, rows[one]] += 1
        self._seen[rows[one]] += 1
        # A full slot; or fewer or more: vLLM took tokens back (a failed transfer of cache blocks), or a step was not seen.
        self._load(rows[(fresh != 0) & ~one].tolist())

    # ------------------------------------------------------------ requests with a policy

    def _follow(self) -> None:
        """Let every policy see its new token; in other sections, other settings apply."""
        self._shadow.collect()
        changed = False
        for row, request, followed in self._followed:
            if followed.read(request.output) and not np.array_equal(followed.line, self._table[row]):
                self._table[row] = followed.line
                changed = True
            if followed.shadow:
                self._shadow.step(request.slot, followed)
        if changed and self._penalise is not None:
            self._sent.copy_(send(self._table[: self._batch_size], self._sent.device))

    def _pack(self) -> PackedConfig:
        """The settings of the batch, with the sizes of the largest section.

        So the op stays as it is prepared when the lines change, and stores tokens in all sections: it does not where no
        row has anything to compute.
        """
        lines = self._table[: self._batch_size]
        self._sent = send(lines.copy(), self._history.device)
        largest = np.concatenate([lines, *[request.settings.lines for _, request, _ in self._followed]])
        return self._settings.pack(largest, self._sent)

    def _force(self, logits: torch.Tensor) -> None:
        for row, _, followed in self._followed:
            if followed.forced is not None:
                force_(logits, row, followed.forced, overrides_masks=followed.overrides_masks)

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
            self._columns[:, row] = request.slot, len(context), -1
            self._seen[row] = len(request.output)
            self._unloaded.discard(request.slot)
        store(self._history, [request.slot for _, request in requests], block)


def placeholder() -> LZPenaltyError:
    return LZPenaltyError(
        "vLLM gave an output id of -1, a placeholder for a token that it has not copied to the host: the LZ penalty "
        "cannot see the text. Use --no-async-scheduling, or report the way in which you started vLLM."
    )
