// The state of the page: a source gives tokens; tokens and settings give steps.

const MAX_TOKENS = 5000;
const PLAY_MILLISECONDS = 300;
const OWN_TEXT = "own";

class App {
  constructor(data) {
    this.data = data;
    this.tokenizer = new Tokenizer(data.tokenizer);
    this.run = 0;
    this.position = 0;
    this.text = new TextView(byId("text"), (place) => this.goTo(place));
    this.timeline = new TimelineView(byId("rows"), (run, place) => this.choose(run, place));
    this.controls = new Controls(byId("controls"), data.settings, data.presets, () => this.settingsChanged());
    this.listSources();
    this.listen();
    this.showSource();
  }

  // ------------------------------------------------------------ sources

  listSources() {
    const own = { label: "your own text", value: OWN_TEXT };
    const named = (list, kind) => list.map((one, i) => ({ label: visible(one.name), value: `${kind}:${i}` }));
    const groups = [
      ["Text", [own, ...named(this.data.texts, "text")]],
      ["Examples", named(this.data.examples, "example")],
      ["Recorded runs", named(this.data.recordings, "recording")],
    ];
    for (const [label, options] of groups) {
      if (!options.length) continue;
      const nodes = options.map((one) => element("option", { value: one.value }, one.label));
      byId("source").append(element("optgroup", { label }, ...nodes));
    }
    byId("input").value = this.data.text;
    byId("source").value = this.data.show;
  }

  showSource() {
    const [kind, index] = byId("source").value.split(":");
    this.play(false);
    this.run = 0;
    if (kind === "example") {
      byId("input").value = this.data.examples[index].text;
      byId("source").value = OWN_TEXT;
    }
    const stored = kind === "recording" ? this.data.recordings[index] : kind === "text" ? this.data.texts[index] : null;
    byId("input-field").hidden = stored !== null;
    if (stored) this.openStored(stored);
    else this.openOwn();
  }

  openOwn() {
    const all = this.tokenizer.encode(byId("input").value);
    const tokens = all.slice(0, MAX_TOKENS);
    const cut = all.length > MAX_TOKENS ? `; only the first ${MAX_TOKENS.toLocaleString("en")} are shown` : "";
    byId("input-note").textContent = `${count(all.length, "token")} of the bundled model's tokenizer${cut}.`;
    this.open({
      runs: [{ name: "this text", tokens }],
      recorded: null,
      promptLength: 0,
      vocabSize: this.data.tokenizer.vocab_size,
      special: this.data.tokenizer.special,
      textOf: (id) => this.tokenizer.text(id),
    });
    this.goTo(tokens.length);
  }

  /** Open a recording, or a text with its tokens. */
  openStored(stored) {
    const texts = new Map(Object.entries(stored.texts).map(([id, text]) => [Number(id), text]));
    const runs = stored.runs ?? [{ penalty: "this text", tokens: [], config: null }];
    byId("input-note").textContent = visible(stored.about);
    this.open({
      runs: runs.map((run) => ({
        name: visible(run.penalty),
        config: run.config,
        tokens: [...stored.prompt, ...run.tokens],
      })),
      recorded: stored.runs ?? null,
      promptLength: stored.runs ? stored.prompt.length : 0,
      vocabSize: stored.vocab_size,
      special: stored.special,
      textOf: (id) => texts.get(id) ?? `<${id}>`,
    });
    this.position = 0;
    if (runs[0].config) this.controls.replace(runs[0].config);
    this.goTo(this.firstPosition());
  }

  open(source) {
    this.source = source;
    this.controls.exempt(source.special, source.recorded ? [] : this.data.settings.exempt_token_ids);
    this.controls.prompt.box.hidden = !source.promptLength;
    byId("distribution").hidden = !source.recorded;
    this.buildText();
    this.buildTimeline();
  }

  /** The first position to show in a recorded run: after three copies of its first loop, or where runs differ. */
  firstPosition() {
    const { runs, promptLength } = this.source;
    const loop = keptLoops(runs[this.run], this.settings()).find((one) => one.stop > promptLength);
    if (loop) return Math.max(promptLength, Math.min(loop.stop, loop.start + 3 * loop.period));
    const differences = runs.map((run) => firstDifference(this.tokens(), run.tokens)).filter((place) => place !== null);
    return differences.length ? Math.min(...differences) : promptLength || this.tokens().length;
  }

  tokens() {
    return this.source.runs[this.run].tokens;
  }

  settings() {
    return this.controls.settings;
  }

  buildText() {
    const tokens = this.tokens();
    this.text.build(tokens.map(this.source.textOf));
    byId("position").max = tokens.length;
  }

  buildTimeline() {
    const { runs, vocabSize, promptLength } = this.source;
    this.drawnFor = timelineKey(this.settings());
    this.timeline.build(runs, this.run, vocabSize, this.settings(), promptLength);
    this.describeTimeline();
  }

  describeTimeline() {
    const key = (kind, text) => element("span", {}, element("span", { class: `key ${kind}` }), text);
    const most = (Math.log2(this.source.vocabSize) + 1).toFixed(1);
    const keys = [
      key("bits", `bits per token of the LZSS code, 0 to ${most}`),
      key("band", "loop"),
    ];
    if (hasGate(this.settings())) keys.push(key("share", "copy share, 0 to 1"), key("opening", "gate open"));
    if (this.source.promptLength) keys.push(key("prompt", "prompt"));
    if (this.source.runs.length > 1) keys.push(key("leave", "first difference from the run without a penalty"));
    byId("timeline-note").replaceChildren(element("span", { class: "keys" }, ...keys));
  }

  // ------------------------------------------------------------ changes

  listen() {
    byId("source").addEventListener("change", () => this.showSource());
    byId("input").addEventListener("input", () => this.typed());
    byId("position").addEventListener("input", (event) => this.goTo(Number(event.target.value)));
    const buttons = { "to-start": -Infinity, back: -1, forward: 1, "to-end": Infinity };
    for (const [id, by] of Object.entries(buttons))
      byId(id).addEventListener("click", () => this.goTo(this.position + by));
    byId("play").addEventListener("click", () => this.play(!this.playing));
    document.addEventListener("keydown", (event) => this.pressed(event));
  }

  typed() {
    if (byId("source").value !== OWN_TEXT) return;
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.openOwn());
  }

  pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    const far = event.shiftKey ? 10 : 1;
    const by = { ArrowLeft: -far, ArrowRight: far, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.goTo(this.position + by);
  }

  play(on) {
    this.playing = on;
    clearInterval(this.timer);
    byId("play").textContent = on ? "Pause" : "Play";
    byId("play").setAttribute("aria-pressed", String(on));
    if (!on) return;
    if (this.position === this.tokens().length) this.goTo(0);
    this.timer = setInterval(() => this.goTo(this.position + 1), PLAY_MILLISECONDS);
  }

  choose(run, place) {
    if (run !== this.run) {
      this.run = run;
      byId(`run-${run}`).checked = true;
      this.buildText();
      const { config } = this.source.runs[run];
      this.position = Math.min(this.position, this.tokens().length);
      if (config) this.controls.replace(config);
    }
    this.goTo(place ?? this.position);
  }

  settingsChanged() {
    if (!this.source) return;
    if (this.drawnFor !== timelineKey(this.settings())) this.buildTimeline();
    this.goTo(this.position);
  }

  // ------------------------------------------------------------ one step

  goTo(position) {
    const tokens = this.tokens();
    this.position = Math.max(0, Math.min(tokens.length, position));
    if (this.playing && this.position === tokens.length) this.play(false);
    const { vocabSize, promptLength, textOf } = this.source;
    const known = Math.min(this.position, promptLength);
    this.step = explain(tokens.slice(0, this.position), vocabSize, this.settings(), known);
    this.text.show(this.step, this.position);
    this.showFacts();
    showCandidates(this.step, textOf);
    showDistribution(this.recordedStep(), this.step, textOf);
    this.timeline.move(this.position, this.run);
    this.showPosition(tokens.length);
    this.text.follow(this.position); // last, because it reads the layout, which everything above changes
  }

  showPosition(length) {
    const text = `${this.position.toLocaleString("en")} of ${count(length, "token")}`;
    byId("position").value = this.position;
    byId("position").setAttribute("aria-valuetext", text);
    byId("position-text").textContent = text;
    for (const id of ["to-start", "back"]) byId(id).disabled = this.position === 0;
    for (const id of ["forward", "to-end"]) byId(id).disabled = this.position === length;
  }

  recordedStep() {
    const run = this.source.recorded?.[this.run];
    const i = this.position - this.source.promptLength;
    if (!run || i < 0 || i >= run.tokens.length) return null;
    const top = run.top[i];
    return {
      run: visible(run.penalty),
      ids: top.filter((_, k) => k % 2 === 0),
      logits: top.filter((_, k) => k % 2 === 1),
      logNormaliser: run.log_normalisers[i],
      chosen: run.tokens[i],
    };
  }

  showFacts() {
    const { step, position } = this;
    const [window, buffer] = [step.window, step.buffer].map(([first, stop]) => stop - first);
    const facts = [
      ["Window", `${count(window, "token")}; buffer ${buffer}`],
      ["Longest match", this.matchText(step)],
    ];
    const loop = step.loop;
    const loopText = loop
      ? element("span", { class: "loop" }, `${count(loop.period, "token")}, ${loop.copies.toFixed(1)} copies`)
      : "none";
    facts.push(["Loop", loopText]);
    if (step.gate) facts.push(...this.gateFacts(step.gate));
    if (position < this.tokens().length) facts.push(["Next in the text", this.nextText(this.tokens()[position])]);
    byId("facts").replaceChildren(
      ...facts.flatMap(([name, what]) => [element("dt", {}, name), element("dd", {}, what)]),
    );
  }

  gateFacts({ share, opening }) {
    const { gate_low: low, gate_high: high, gate_window: size, include_prompt: all } = this.settings();
    const known = this.position - (all ? 0 : Math.min(this.position, this.source.promptLength));
    const least = gateFrom(this.settings());
    const recent = `${share.toFixed(2)} of the last ${count(Math.min(size, known), "token")}`;
    const text = known < least ? `0: fewer than ${count(least, "token")} so far` : recent;
    return [
      ["Copy share", meter(share, text, [low, high])],
      ["Gate", meter(opening, opening ? `${(100 * opening).toFixed(0)} % open` : "closed")],
    ];
  }

  matchText(step) {
    if (!step.matches.length) return "none";
    const distances = step.matches
      .slice(0, 5)
      .map((match) => match.distance.toLocaleString("en"))
      .join(", ");
    return `${count(step.longest, "token")}, at distance ${distances}${step.matches.length > 5 ? ", …" : ""}`;
  }

  nextText(token) {
    const one = this.step.candidates.find((candidate) => candidate.token === token);
    const cost = one
      ? ` costs ${one.codelength.toFixed(2)} bits, logit ${one.change.toFixed(2)}: ${reasonOf(one)}`
      : ` costs ${this.step.literal.toFixed(2)} bits, logit unchanged`;
    return element("span", {}, tokenName(this.source.textOf(token)), cost);
  }
}

const app = new App(JSON.parse(byId("data").textContent));
const encode = (text) => app.tokenizer.encode(text);
window.lzPenalty = { app, explain, codeBits, copyShares, loopsOf, distributions, encode };
