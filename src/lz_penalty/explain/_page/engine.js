// Compute the penalty like lz_penalty.reference; a test compares both in a browser.
// Names are the paper's; settings are those of LZPenaltyConfig.

const MIN_COPIES = 3;

/** Return for each p how many trailing items equal the item p before them: the Z-function of the reversed list. */
function trailingRuns(items) {
  const n = items.length;
  const run = new Int32Array(n);
  if (n) run[0] = n;
  let left = 0;
  let right = 0;
  for (let p = 1; p < n; p++) {
    let length = p < right ? Math.min(right - p, run[p - left]) : 0;
    while (p + length < n && items[n - 1 - length] === items[n - 1 - p - length]) length++;
    run[p] = length;
    if (p + length > right) [left, right] = [p, p + length];
  }
  return run;
}

/** Return the period with the most copies at the end, the smallest on ties; null below three copies. */
function trailingLoop(runs, loopWindow) {
  const n = Math.min(runs.length, loopWindow);
  let best = null;
  for (let period = 1; period < n; period++) {
    const run = Math.min(runs[period], n - period);
    if (best === null || run * best.period > best.run * period) best = { period, run };
  }
  if (best === null) return null;
  const copies = 1 + best.run / best.period;
  return copies >= MIN_COPIES ? { ...best, copies, length: best.period + best.run } : null;
}

function effectiveLookback(settings) {
  return settings.lookback ?? (settings.formula === "sglang" ? "adjacent" : "before_buffer");
}

/** Return where the window begins and ends in a context of this length. */
function windowSpan(length, settings) {
  const adjacent = effectiveLookback(settings) === "adjacent";
  const stop = adjacent ? length : Math.max(0, length - settings.buffer_size);
  return [Math.max(0, stop - settings.window_size), stop];
}

/** Return, for each distance of a token that could be repeated, how many tokens before it equal the context's end. */
function matchLengths(length, runs, settings) {
  const [first, stop] = windowSpan(length, settings);
  const size = stop - first;
  const matches = new Map();
  if (!size) return matches;
  for (let e = effectiveLookback(settings) === "adjacent" ? 1 : 0; e <= size; e++) {
    const run = runs[length - stop + e] ?? 0;
    matches.set(e, Math.min(run, settings.buffer_size, size - e));
  }
  return matches;
}

function longestOf(matches) {
  let longest = 0;
  for (const m of matches.values()) longest = Math.max(longest, m);
  return longest;
}

function paperOccurrences(context, matches, settings) {
  const adjacent = effectiveLookback(settings) === "adjacent";
  const longest = longestOf(matches);
  const stop = windowSpan(context.length, settings)[1];
  const found = [];
  for (const [e, m] of matches) {
    if (e === 0) continue;
    const one = { token: context[stop - e], distance: e, matchLength: m };
    if (settings.min_match_length === 1) found.push({ ...one, extends: false, value: Math.log2(e) });
    if (longest < 1 || m !== longest || longest + 1 < settings.min_match_length) continue;
    const d = e + longest;
    if (adjacent) found.push({ ...one, extends: true, value: Math.log2((longest + 1) / longest) - 1 });
    else if (e >= 2) found.push({ ...one, extends: true, value: Math.log2(1 + (e - 1) / (longest * d)) - 1 });
  }
  return found;
}

function sglangOccurrences(context, matches, settings) {
  const candidates = Math.min(settings.window_size, context.length) - settings.buffer_size;
  const found = [];
  for (let distance = 1; distance <= candidates; distance++) {
    const matchLength = matches.get(distance);
    const lambda = 1 + matchLength;
    const value = Math.max(0, (Math.log2(distance + 1) + Math.log2(lambda)) / lambda);
    found.push({ token: context[context.length - distance], distance, matchLength, extends: lambda > 1, value });
  }
  return found;
}

/** Return every occurrence in the window that has a value, nearest first. */
function occurrences(context, matches, settings) {
  if (settings.formula === "sglang") return sglangOccurrences(context, matches, settings);
  if (settings.min_match_length === null) return [];
  return paperOccurrences(context, matches, settings);
}

// ---------------------------------------------------------------- the gate

function hasGate(settings) {
  return typeof settings.gate_high === "number";
}

function gramLength(settings) {
  return Math.max(2, settings.min_match_length ?? 1);
}

/** Return for each position a name of the n tokens that end there: equal n-grams have equal names, others do not. */
function gramNames(tokens, n) {
  let names = tokens;
  for (let length = 1; length < n; ) {
    const by = Math.min(length, n - length);
    const known = new Map();
    names = names.map((name, i) => {
      if (i < length + by - 1) return null;
      const pair = `${names[i - by]} ${name}`;
      if (!known.has(pair)) known.set(pair, known.size);
      return known.get(pair);
    });
    length += by;
  }
  return names;
}

/** Return for each position whether the n tokens that end there also end at one of window_size positions before. */
function copiedPositions(tokens, settings) {
  const newest = new Map();
  return gramNames(tokens, gramLength(settings)).map((name, i) => {
    if (name === null) return false;
    const copied = i - (newest.get(name) ?? -Infinity) <= settings.window_size;
    newest.set(name, i);
    return copied;
  });
}

/** Return the number of tokens from which on the gate can open. */
function gateFrom({ gate_window, gate_from }) {
  return Math.min(gate_from ?? Infinity, Math.ceil(gate_window / 2));
}

/** Return the copy share after 0, 1, 2, ... of the tokens. */
function copyShares(tokens, settings) {
  const { gate_window: size } = settings;
  const least = gateFrom(settings);
  const copied = copiedPositions(tokens, settings);
  const shares = [0];
  let found = 0;
  for (let t = 1; t <= tokens.length; t++) {
    found += copied[t - 1] - (t > size ? copied[t - 1 - size] : 0);
    shares.push(t < least ? 0 : found / Math.min(size, t));
  }
  return shares;
}

/** Return which part of every codelength adjustment is charged: 0 (closed) to 1 (open). */
function gateOpening(share, settings) {
  const { gate_low: low, gate_high: high } = settings;
  return Math.min(1, Math.max(0, (share - low) / (high - low)));
}

/** Return the copy share and the gate's opening after the context; null without a gate. */
function gateAfter(context, settings) {
  if (!hasGate(settings)) return null;
  const reach = settings.gate_window + settings.window_size + gramLength(settings) - 1;
  const share = copyShares(context.slice(Math.max(0, context.length - reach)), settings).at(-1);
  return { share, opening: gateOpening(share, settings) };
}

// ---------------------------------------------------------------- the penalty

/** Return token -> { bits relative to log2 V, its cheapest occurrence, the loop's share }, including exempt tokens. */
function charges(context, found, opening, loop, literal, settings) {
  const charged = new Map();
  for (const one of found) {
    const old = charged.get(one.token);
    if (!old || one.value < old.because.value) {
      charged.set(one.token, { bits: opening * Math.min(0, one.value - literal), because: one, loopBits: 0 });
    }
  }
  if (settings.escalation && loop) {
    const token = context[context.length - loop.period];
    const old = charged.get(token) ?? { bits: 0, because: null };
    const loopBits = -settings.escalation * (literal + 1) * (loop.copies - 2);
    charged.set(token, { ...old, bits: old.bits + loopBits, loopBits });
  }
  return charged;
}

/** Return what the penalty finds and changes after these tokens: the fields of lz_penalty.explain.Explanation. */
function explain(tokens, vocabSize, settings, promptLength = 0) {
  const offset = settings.include_prompt ? 0 : promptLength;
  const context = tokens.slice(offset);
  const reach = Math.max(settings.loop_window, settings.window_size + settings.buffer_size);
  const runs = trailingRuns(context.slice(Math.max(0, context.length - reach)));
  const matches = matchLengths(context.length, runs, settings);
  const gate = gateAfter(context, settings);
  const opening = gate ? gate.opening : 1;
  const found = opening ? occurrences(context, matches, settings) : []; // nothing is charged while the gate is closed
  const loop = trailingLoop(runs, settings.loop_window);
  const literal = Math.log2(vocabSize);
  const [first, stop] = windowSpan(context.length, settings);
  return {
    window: [offset + first, offset + stop],
    buffer: [offset + Math.max(0, context.length - settings.buffer_size), tokens.length],
    longest: longestOf(matches),
    matches: longestMatches(tokens, matches, offset + stop, extending(found, vocabSize, settings)),
    loop: loop && { ...loop, start: tokens.length - loop.length, nextToken: context[context.length - loop.period] },
    gate,
    literal,
    candidates: candidatesOf(charges(context, found, opening, loop, literal, settings), vocabSize, literal, settings),
  };
}

function isCharged(token, vocabSize, settings) {
  return token >= 0 && token < vocabSize && !settings.exempt_token_ids.includes(token);
}

/** Return the distances of occurrences that extend a match and whose token is penalised. */
function extending(found, vocabSize, settings) {
  const grow = found.filter((one) => one.extends && isCharged(one.token, vocabSize, settings));
  return new Set(grow.map((one) => one.distance));
}

function longestMatches(tokens, matches, stop, growing) {
  const longest = longestOf(matches);
  const out = [];
  for (const [e, m] of matches) {
    if (longest < 1 || m !== longest) continue;
    const end = stop - e;
    out.push({ distance: e + m, start: end - m, stop: end, nextToken: tokens[end], extends: growing.has(e) });
  }
  return out;
}

/** Return the penalised tokens that cost less than a literal. */
function candidatesOf(charged, vocabSize, literal, settings) {
  const out = [];
  for (const [token, { bits, because, loopBits }] of charged) {
    if (bits === 0 || !isCharged(token, vocabSize, settings)) continue;
    const distance = because ? because.distance : null;
    const matchLength = because ? because.matchLength : 0;
    const grows = because ? because.extends : false;
    const change = settings.strength * bits;
    out.push({ token, bits, codelength: literal + bits, change, distance, matchLength, extends: grows, loopBits });
  }
  return out.sort((a, b) => a.codelength - b.codelength || a.token - b.token);
}

// ---------------------------------------------------------------- the compressor

/** Return the longest prefix of the tokens from i on that the window before i contains; the nearest on ties. */
function longestPhrase(tokens, i, settings) {
  const first = Math.max(0, i - settings.window_size);
  const most = Math.min(settings.buffer_size, tokens.length - i);
  let length = 0;
  let distance = 0;
  for (let start = i - 1; start >= first && length < most; start--) {
    let k = 0;
    while (k < most && start + k < i && tokens[i + k] === tokens[start + k]) k++;
    if (k > length) [length, distance] = [k, i - start];
  }
  return { length, distance };
}

/** Return each token's share of the LZSS code: the bits of its phrase / the tokens of its phrase. */
function codeBits(tokens, vocabSize, settings) {
  const shares = [];
  while (shares.length < tokens.length) {
    const { length, distance } = longestPhrase(tokens, shares.length, settings);
    const bits = length ? Math.log2(length) + Math.log2(distance) + 1 : Math.log2(vocabSize) + 1;
    const count = Math.max(1, length);
    for (let k = 0; k < count; k++) shares.push(bits / count);
  }
  return shares;
}

/** Return the stretches with at least three copies in a row that are long enough to be visible. */
function loopsOf(tokens, settings, minLength = 12) {
  const found = [];
  for (let end = minLength; end <= tokens.length; end++) {
    const context = tokens.slice(Math.max(0, end - settings.loop_window), end);
    if (!mayLoop(context)) continue;
    const loop = trailingLoop(trailingRuns(context), settings.loop_window);
    if (!loop || loop.length < minLength) continue;
    const { period } = loop;
    let start = end - loop.length;
    while (found.length && sameLoop(found[found.length - 1], start, period)) start = Math.min(found.pop().start, start);
    found.push({ start, stop: end, period, copies: (end - start) / period });
  }
  return found;
}

/** Return whether a stretch with this start and period contains the last one or continues it. */
function sameLoop(last, start, period) {
  return start <= last.start || (period === last.period && last.stop - start >= period);
}

/** Return false if the newest token occurs fewer than three times: then it cannot end three copies. */
function mayLoop(context) {
  const newest = context[context.length - 1];
  let count = 0;
  for (let i = context.length - 1; i >= 0 && count < MIN_COPIES; i--) if (context[i] === newest) count++;
  return count === MIN_COPIES;
}
