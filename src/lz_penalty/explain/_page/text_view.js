// The text, one span per token. A step changes the classes of a few spans and creates none.

class TextView {
  constructor(box, onChoose) {
    this.box = box;
    this.spans = [];
    this.classes = [];
    box.addEventListener("click", (event) => {
      const place = this.spans.indexOf(event.target);
      if (place >= 0) onChoose(place);
    });
  }

  build(texts) {
    this.spans = texts.map((text) => element("span", { class: "token" }, inText(text)));
    this.classes = texts.map(() => "token");
    this.box.replaceChildren(...this.spans);
  }

  /** Mark window, buffer, matches and the next token. */
  show(step, position) {
    const classes = this.spans.map((_, i) => this.ground(i, step, position));
    for (const match of step.matches) {
      for (let i = match.start; i < match.stop; i++) classes[i] += " match";
    }
    for (const match of step.matches) {
      if (match.extends) classes[match.stop] = `${classes[match.stop].replace(" match", "")} extends`;
    }
    if (position < classes.length) classes[position] += " next";
    classes.forEach((name, i) => {
      if (name !== this.classes[i]) this.spans[i].className = name;
    });
    this.classes = classes;
  }

  ground(i, step, position) {
    if (i >= position) return "token future";
    const where = i >= step.window[0] && i < step.window[1] ? "window" : i < step.window[0] ? "past" : "";
    return `token ${where}${i >= step.buffer[0] ? " buffer" : ""}`;
  }

  /** Scroll only the box, so that the next token is visible. */
  follow(position) {
    const span = this.spans[Math.min(position, this.spans.length - 1)];
    if (!span) return;
    const { scrollTop, clientHeight } = this.box;
    const top = span.offsetTop;
    const bottom = top + span.offsetHeight;
    if (top < scrollTop + 8 || bottom > scrollTop + clientHeight - 8) this.box.scrollTop = top - clientHeight / 2;
  }
}
