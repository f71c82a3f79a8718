// One row per run: each token's bits in the LZSS code, loops, and the first difference from the unpenalised run.

const HEIGHT = 40;
const STRIP = 6; // above the bars, with a gap of 1

/** Return a run's loops, which are cached in the run. They depend only on its tokens and the loop window. */
function keptLoops(run, settings) {
  if (run.loops?.window !== settings.loop_window)
    run.loops = { window: settings.loop_window, found: loopsOf(run.tokens, settings) };
  return run.loops.found;
}

/** Return the settings that the rows depend on, as one string. */
function timelineKey(settings) {
  const { window_size, buffer_size, loop_window, min_match_length, include_prompt } = settings;
  const { gate_low, gate_high, gate_window } = settings;
  const thresholds = [gate_low, gate_high, gate_window, gateFrom(settings)];
  const gate = hasGate(settings) ? [...thresholds, min_match_length, include_prompt] : [];
  return [window_size, buffer_size, loop_window, ...gate].join(" ");
}

/** Return the copy share before each token of a run and after the last one; null without a gate. */
function sharesOf(tokens, settings, promptLength) {
  if (!hasGate(settings)) return null;
  const offset = settings.include_prompt ? 0 : promptLength;
  return [...new Array(offset).fill(0), ...copyShares(tokens.slice(offset), settings)];
}

/** Return the data of one row; computed when the text or a setting of `timelineKey` changes. */
function timelineOf(run, vocabSize, settings, reference, promptLength) {
  const { tokens } = run;
  const shares = codeBits(tokens, vocabSize, settings);
  const total = shares.reduce((sum, bits) => sum + bits, 0);
  const rate = tokens.length ? total / tokens.length : 0;
  const differs = reference ? firstDifference(reference, tokens) : null;
  const copied = sharesOf(tokens, settings, promptLength);
  const openings = copied?.map((share) => gateOpening(share, settings));
  return { shares, rate, loops: keptLoops(run, settings), differs, copied, openings };
}

/** Return where two texts first differ; null if they are equal. */
function firstDifference(one, other) {
  let place = 0;
  while (place < one.length && place < other.length && one[place] === other[place]) place++;
  return place === one.length && place === other.length ? null : place;
}

function summaryOf(line, promptLength) {
  const loop = line.loops[line.loops.length - 1];
  const parts = [`${line.rate.toFixed(2)} bits per token`];
  if (loop && loop.stop > promptLength) {
    const many = `${count(loop.period, "token")}\u00A0×\u00A0${loop.copies.toFixed(1)}`;
    const which = line.loops.length > 1 ? `${line.loops.length} loops, the last` : "loop";
    parts.push(`${which} at ${loop.start.toLocaleString("en")}–${loop.stop.toLocaleString("en")}: ${many}`);
  } else parts.push("no loop");
  if (line.differs !== null) parts.push(`differs from ${line.differs.toLocaleString("en")} on`);
  return parts.join("; ");
}

function bars(shares, first, stop, most, kind) {
  let d = "";
  for (let i = first; i < stop; i++) {
    d += `M${i} ${HEIGHT}V${(HEIGHT * (1 - Math.min(1, shares[i] / most))).toFixed(2)}h1V${HEIGHT}`;
  }
  return drawing("path", { class: kind, d });
}

/** Return the copy share as a curve, and above it a strip that is as opaque as the gate is open. */
function gateCurve(copied, openings) {
  const points = copied.map((share, i) => `${i} ${(HEIGHT * (1 - share)).toFixed(2)}`);
  const curve = (kind) =>
    drawing("path", { class: kind, d: `M${points.join("L")}`, "vector-effect": "non-scaling-stroke" });
  const strip = drawing("g", { class: "opening" });
  const tenths = openings.map((opening) => Math.ceil(10 * opening)); // so that few rectangles suffice
  for (let i = 0, next = 0; i < tenths.length; i = next) {
    while (next < tenths.length && tenths[next] === tenths[i]) next++;
    const [width, opacity] = [next - i, tenths[i] / 10];
    if (opacity) strip.append(drawing("rect", { x: i, y: -STRIP, width, height: STRIP - 1, opacity }));
  }
  return drawing("g", {}, strip, curve("share-halo"), curve("share"));
}

/** Return a vertical line that is visible on any background. */
function upright(x, kind) {
  const line = (name) =>
    drawing("line", { class: name, x1: x, x2: x, y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" });
  return drawing("g", {}, line("halo"), line(kind));
}

function drawLine(line, width, most, promptLength, label) {
  const above = line.copied ? STRIP : 0;
  const svg = drawing("svg", {
    viewBox: `0 ${-above} ${Math.max(1, width)} ${HEIGHT + above}`,
    preserveAspectRatio: "none",
    role: "img",
  });
  svg.setAttribute("aria-label", label);
  for (const loop of line.loops) {
    svg.append(drawing("rect", { class: "band", x: loop.start, y: 0, width: loop.stop - loop.start, height: HEIGHT }));
  }
  svg.append(bars(line.shares, 0, promptLength, most, "prompt"));
  svg.append(bars(line.shares, promptLength, line.shares.length, most, "bits"));
  for (const loop of line.loops) svg.append(upright(loop.start, "band-edge"));
  if (line.copied) svg.append(gateCurve(line.copied, line.openings));
  if (line.differs !== null) svg.append(upright(line.differs, "leave"));
  svg.append(filled(upright(0, "cursor"), { class: "here" }, []));
  return svg;
}

class TimelineView {
  /** @param onChoose called with the index of a run and of a token */
  constructor(box, onChoose) {
    this.box = box;
    this.onChoose = onChoose;
    this.cursors = [];
  }

  /** @param runs [{name, tokens}] @param chosen which of them is shown above */
  build(runs, chosen, vocabSize, settings, promptLength) {
    const unpenalised = runs.find((run) => run.name === "none");
    const most = Math.log2(vocabSize) + 1;
    this.width = Math.max(1, ...runs.map((run) => run.tokens.length));
    this.cursors = [];
    const rows = runs.map((run, i) => {
      const line = timelineOf(run, vocabSize, settings, unpenalised?.tokens, promptLength);
      const summary = summaryOf(line, promptLength);
      const svg = drawLine(line, this.width, most, promptLength, `${run.name}: ${summary}`);
      svg.addEventListener("click", (event) => this.clicked(event, svg, i, run.tokens.length));
      this.cursors.push(svg.querySelector(".here"));
      return element("div", { class: "run" }, this.head(run.name, summary, i, i === chosen, runs.length), svg);
    });
    const focused = this.box.contains(document.activeElement) ? document.activeElement.id : "";
    this.box.replaceChildren(...rows);
    if (focused) byId(focused)?.focus({ preventScroll: true });
  }

  head(name, summary, i, chosen, runs) {
    const said = element("div", { class: "summary" }, summary);
    if (runs === 1) return element("div", {}, element("div", { class: "name" }, name), said);
    const radio = element("input", { type: "radio", name: "run", id: `run-${i}`, value: String(i) });
    radio.checked = chosen;
    radio.addEventListener("change", () => this.onChoose(i, null));
    return element("div", {}, element("label", { class: "name", for: `run-${i}` }, radio, ` ${name}`), said);
  }

  clicked(event, svg, run, length) {
    const { left, width } = svg.getBoundingClientRect();
    const place = Math.floor(((event.clientX - left) / width) * this.width);
    this.onChoose(run, Math.max(0, Math.min(length, place)));
  }

  move(position, chosen) {
    this.cursors.forEach((cursor, i) => {
      cursor.setAttribute("transform", `translate(${position} 0)`);
      cursor.style.visibility = i === chosen ? "visible" : "hidden";
    });
  }
}
