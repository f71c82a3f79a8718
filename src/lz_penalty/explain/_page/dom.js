// Create elements. Text goes into the page as text nodes only, so that nothing in it can run.

const SVG = "http://www.w3.org/2000/svg";

function byId(id) {
  return document.getElementById(id);
}

/** Return an element with attributes and children; strings become text nodes. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function bar(share, kind = "") {
  const node = element("div", { class: `bar ${kind}`.trim(), "aria-hidden": "true" });
  node.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  return node;
}

/** Return a bar from 0 to 1 with marks, and its text. */
function meter(share, text, marks = []) {
  const track = element("span", { class: "meter", "aria-hidden": "true" }, bar(share));
  for (const place of marks) {
    const mark = element("span", { class: "mark" });
    mark.style.left = `${100 * place}%`;
    track.append(mark);
  }
  return element("span", { class: "measured" }, track, text);
}

/** Write characters that are invisible or change the text direction as \u{...}. */
function visible(text) {
  const code = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => (c === "\n" || c === "\t" ? c : code(c)));
}

/** Return a token within the text: line breaks are shown as symbols and kept. */
function inText(text) {
  return visible(text).replaceAll("\n", "\u21B5\n").replaceAll("\t", "\u2192\t");
}

/** Return a token by itself: spaces and line breaks are shown as symbols. */
function alone(text) {
  return visible(text).replaceAll("\n", "\u21B5").replaceAll("\t", "\u2192").replaceAll(" ", "\u2423") || "(empty)";
}

function tokenName(text) {
  return element("code", {}, alone(text));
}

function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}
