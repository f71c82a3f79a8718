// The settings: a preset, sliders, and the limits of the formula.

const SLIDERS = [
  { name: "strength", label: "Strength", max: 1, min: 0, step: 0.01, hint: "logits per bit" },
  { name: "window_size", label: "Window", max: 1024, min: 1, step: 1, hint: "number of tokens searched" },
  { name: "buffer_size", label: "Buffer", max: 64, min: 1, step: 1, hint: "length of the longest match" },
  {
    name: "min_match_length",
    label: "Shortest copy",
    max: 12,
    min: 1,
    step: 1,
    hint: "shorter copies cost as much as new text",
  },
  { name: "escalation", label: "Escalation", max: 3, min: 0, step: 0.1, hint: "grows with every copy of a loop" },
];
const GATE_SLIDERS = [
  { name: "gate_low", label: "Gate opens above", max: 0.99, min: 0, step: 0.01, hint: "copy share" },
  { name: "gate_high", label: "Gate is open from", max: 1, min: 0.01, step: 0.01, hint: "copy share" },
  {
    name: "gate_window",
    label: "Gate window",
    max: 512,
    min: 4,
    step: 1,
    hint: "number of tokens in which copies are counted",
  },
];
const GATE_HINT = "charges codelengths only where much of the text is copied";
const GATE_ON = { gate_low: 0.4, gate_high: 0.5 };
const GATE_OFF = { gate_low: null, gate_high: null };
const OWN = "own settings";

class Controls {
  constructor(box, settings, presets, onChange) {
    this.settings = { ...settings };
    this.presets = presets;
    this.onChange = onChange;
    this.preset = this.select("preset", "Preset", [...Object.keys(presets), OWN], () => this.takePreset());
    this.formula = this.select("formula", "Formula", ["paper", "sglang"], (value) => this.set({ formula: value }));
    this.lookback = this.select("lookback", "Window ends", ["before_buffer", "adjacent"], (value) =>
      this.set({ lookback: value }),
    );
    this.gate = this.checkbox("gate", "Gate", (on) => this.set(on ? GATE_ON : GATE_OFF), GATE_HINT);
    const plain = SLIDERS.map((about) => this.slider(about));
    this.gateSliders = GATE_SLIDERS.map((about) => this.slider(about));
    this.sliders = [...plain, ...this.gateSliders];
    this.codelengths = this.checkbox("codelengths", "Charge codelengths", (on) =>
      this.set({ min_match_length: on ? 1 : null }),
    );
    this.prompt = this.checkbox("include_prompt", "Count the prompt", (on) => this.set({ include_prompt: on }));
    const parts = [
      this.preset,
      ...plain.map((one) => one.part),
      this.codelengths,
      this.gate,
      ...this.gateSliders.map((one) => one.part),
      this.prompt,
      this.formula,
      this.lookback,
    ];
    box.replaceChildren(...parts.map((part) => part.box ?? part));
    this.refresh();
  }

  select(id, label, options, onChoose) {
    const field = element(
      "select",
      { id },
      ...options.map((value) => element("option", { value }, value.replace("_", " the "))),
    );
    field.addEventListener("change", () => onChoose(field.value));
    const box = element("div", { class: "control" }, element("label", { for: id }, label), field);
    return { field, box };
  }

  checkbox(id, label, onChoose, hint = "") {
    const field = element("input", { type: "checkbox", id, "aria-describedby": `${id}-hint` });
    field.addEventListener("change", () => onChoose(field.checked));
    const note = element("div", { class: "hint", id: `${id}-hint` }, hint);
    return { field, box: element("div", { class: "control" }, field, " ", element("label", { for: id }, label), note) };
  }

  slider({ name, label, min, max, step, hint }) {
    const field = element("input", { type: "range", id: name, min, max, step, "aria-describedby": `${name}-hint` });
    const output = element("output", { for: name });
    field.addEventListener("input", () => this.set({ [name]: Number(field.value) }));
    const head = element("div", { class: "head" }, element("label", { for: name }, label), output);
    const note = element("div", { class: "hint", id: `${name}-hint` }, hint);
    return { name, max, field, output, part: element("div", { class: "control" }, head, field, note) };
  }

  takePreset() {
    const preset = this.presets[this.preset.field.value];
    if (preset) this.replace(preset);
    else this.refresh();
  }

  /** Replace the settings; the special tokens of the text's tokenizer stay exempt. */
  replace(settings) {
    this.settings = settings;
    this.exempt(this.special, settings.exempt_token_ids);
    this.refresh();
    this.onChange();
  }

  exempt(special, more) {
    this.special = special;
    this.settings = { ...this.settings, exempt_token_ids: [...new Set([...special, ...more])] };
  }

  set(changes) {
    this.settings = allowed({ ...this.settings, ...changes }, "gate_high" in changes);
    this.refresh();
    this.onChange();
  }

  refresh() {
    const { settings } = this;
    for (const { name, max, field, output } of this.sliders) {
      const value = settings[name] ?? 1;
      field.max =
        name === "min_match_length" ? Math.max(value, Math.min(max, settings.buffer_size + 1)) : Math.max(max, value);
      field.value = value;
      output.textContent = settings[name] === null ? "off" : String(Number(value.toFixed(2)));
    }
    const sglang = settings.formula === "sglang";
    this.sliderOf("min_match_length").field.disabled = sglang || settings.min_match_length === null;
    this.codelengths.field.checked = settings.min_match_length !== null;
    this.codelengths.field.disabled = this.lookback.field.disabled = sglang;
    this.gate.field.checked = hasGate(settings);
    this.gate.field.disabled = settings.min_match_length === null;
    for (const { part } of this.gateSliders) part.hidden = !hasGate(settings);
    this.prompt.field.checked = settings.include_prompt;
    this.formula.field.value = settings.formula;
    this.lookback.field.value = effectiveLookback(settings);
    this.preset.field.value = presetOf(settings, this.presets);
  }

  sliderOf(name) {
    return this.sliders.find((one) => one.name === name);
  }
}

/** Adapt settings to each other, as LZPenaltyConfig requires; keepHigh: change gate_low rather than gate_high. */
function allowed(settings, keepHigh) {
  const out = { ...settings };
  if (out.formula === "sglang") Object.assign(out, { lookback: null, min_match_length: 1 });
  if (out.min_match_length > out.buffer_size + 1) out.min_match_length = out.buffer_size + 1;
  if (out.min_match_length === null) Object.assign(out, GATE_OFF);
  if (hasGate(out) && out.gate_low >= out.gate_high) {
    if (keepHigh) out.gate_low = Math.max(0, hundredths(out.gate_high - 0.01));
    else out.gate_high = Math.min(1, hundredths(out.gate_low + 0.01));
  }
  return out;
}

function hundredths(value) {
  return Math.round(100 * value) / 100;
}

function presetOf(settings, presets) {
  const key = (one) => {
    const { strength, exempt_token_ids: exempt, ...rest } = one;
    return JSON.stringify({ ...rest, lookback: effectiveLookback(one) }, Object.keys(rest).sort());
  };
  return Object.keys(presets).find((name) => key(presets[name]) === key(settings)) ?? OWN;
}
