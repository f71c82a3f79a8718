// The bundled model's tokenizer: byte-level BPE after a split into single digits and words.

const SPACE = "\\p{White_Space}";
const WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
  "gu",
);
const DIGITS = /\p{N}|\P{N}+/gu;

/** Return the printable letter of each byte in byte-level vocabularies. */
function byteLetters() {
  const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  const letters = [];
  let next = 256;
  for (let b = 0; b < 256; b++) letters.push(String.fromCodePoint(printable(b) ? b : next++));
  return letters;
}

function escapedForRegExp(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

class Tokenizer {
  /** @param data {tokens: texts by id, merges: [left, right] in order, added: [[text, id]]} */
  constructor(data) {
    this.ids = new Map(data.tokens.map((text, id) => [text, id]));
    this.ranks = new Map(data.merges.map((pair, rank) => [pair.join(" "), rank]));
    this.added = new Map(data.added);
    this.splitter = new RegExp(`(${[...this.added.keys()].map(escapedForRegExp).join("|")})`, "u");
    this.letters = byteLetters();
    this.bytesOfLetter = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.tokens = data.tokens.slice();
    for (const [text, id] of data.added) this.tokens[id] = text;
    this.addedIds = new Set(this.added.values());
    this.known = new Map();
  }

  encode(text) {
    const ids = [];
    for (const part of text.split(this.splitter)) {
      if (this.added.has(part)) ids.push(this.added.get(part));
      else for (const piece of part.match(DIGITS) ?? []) this.encodePiece(piece, ids);
    }
    return ids;
  }

  encodePiece(piece, ids) {
    for (const word of piece.match(WORDS) ?? []) {
      if (!this.known.has(word)) this.known.set(word, this.merged(word));
      for (const id of this.known.get(word)) ids.push(id);
    }
  }

  /** Byte-pair encoding of one word: the pair that was merged first in training is merged first. */
  merged(word) {
    let parts = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
    for (;;) {
      const pair = this.firstPair(parts);
      if (pair === null) return parts.map((part) => this.ids.get(part));
      const joined = [];
      for (let i = 0; i < parts.length; i++) {
        const both = i + 1 < parts.length && `${parts[i]} ${parts[i + 1]}` === pair;
        joined.push(both ? parts[i] + parts[++i] : parts[i]);
      }
      parts = joined;
    }
  }

  firstPair(parts) {
    let best = null;
    let lowest = Infinity;
    for (let i = 0; i + 1 < parts.length; i++) {
      const pair = `${parts[i]} ${parts[i + 1]}`;
      const rank = this.ranks.get(pair) ?? Infinity;
      if (rank < lowest) [best, lowest] = [pair, rank];
    }
    return best;
  }

  /** Return a token's text; bytes that are not a complete character are written as <e4>. */
  text(id) {
    const token = this.tokens[id];
    if (token === undefined) return `<${id}>`;
    if (this.addedIds.has(id)) return token;
    const bytes = Uint8Array.from(token, (letter) => this.bytesOfLetter.get(letter));
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return Array.from(bytes, (byte) => `<${byte.toString(16).padStart(2, "0")}>`).join("");
    }
  }
}
