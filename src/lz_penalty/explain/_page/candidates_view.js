// The cheapest and the most expensive next tokens, and the model's probabilities before and after the penalty.

const SHOWN = 8;
const SHOWN_PROBABILITIES = 10;

function reasonOf(one) {
  const reasons = [];
  if (one.extends) reasons.push(`extends a match of ${count(one.matchLength, "token")}`);
  else if (one.distance) reasons.push(`at distance ${one.distance.toLocaleString("en")} in the window`);
  if (one.loopBits) reasons.push(`continues the loop (${one.loopBits.toFixed(1)} bits)`);
  return reasons.join("; ");
}

function tableHead(...names) {
  const cells = names.map(([name, kind]) => element("th", { scope: "col", class: kind ?? "" }, name));
  return element("thead", {}, element("tr", {}, ...cells));
}

function candidateRow(one, textOf, largest) {
  const kind = one.loopBits ? "loop" : one.extends ? "extends" : "";
  return element(
    "tr",
    {},
    element("th", { scope: "row", class: "name" }, tokenName(textOf(one.token))),
    element("td", { class: "graph" }, bar(-one.change / largest, kind)),
    element("td", { class: "number" }, one.codelength.toFixed(2)),
    element("td", { class: "number" }, one.change.toFixed(2)),
    element("td", { class: "why" }, reasonOf(one)),
  );
}

function fillCandidates(table, rows, textOf, largest) {
  const head = tableHead(["token"], ["lowered by"], ["bits", "number"], ["logit", "number"], ["because"]);
  const body = rows.map((one) => candidateRow(one, textOf, largest));
  table.replaceChildren(table.caption, head, element("tbody", {}, ...body));
  table.hidden = !rows.length;
}

function showCandidates(step, textOf) {
  const { candidates, literal } = step;
  const largest = Math.max(1e-9, ...candidates.slice(0, 1).map((one) => -one.change));
  fillCandidates(byId("cheapest"), candidates.slice(0, SHOWN), textOf, largest);
  fillCandidates(byId("dearest"), candidates.slice(SHOWN).slice(-SHOWN).reverse(), textOf, largest);
  const others = candidates.length ? `All tokens except ${candidates.length.toLocaleString("en")}` : "All tokens";
  const lowered = candidates.filter((one) => one.change !== 0).length; // none at strength 0
  byId("others").textContent =
    `${count(lowered, "token")} would be lowered. ${others} cost ${literal.toFixed(2)} bits and do not change.`;
}

/** Return the probabilities of the recorded tokens before and after; all other tokens count as unpenalised. */
function distributions(ids, logits, logNormaliser, changes, chosen) {
  const rows = ids.map((token, i) => {
    const before = Math.exp(logits[i] - logNormaliser);
    return { token, before, weight: before * Math.exp(changes.get(token) ?? 0), chosen: token === chosen };
  });
  const rest = Math.max(0, 1 - rows.reduce((sum, row) => sum + row.before, 0));
  const total = rows.reduce((sum, row) => sum + row.weight, rest);
  return {
    rows: rows.map((row) => ({ ...row, after: row.weight / total })),
    rest: { before: rest, after: rest / total },
  };
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
}

function probabilityRow(name, row, largest) {
  return element(
    "tr",
    row.chosen ? { class: "chosen" } : {},
    element("th", { scope: "row", class: "name" }, name),
    element("td", { class: "graph" }, bar(row.before / largest, "before"), bar(row.after / largest)),
    element("td", { class: "number" }, percent(row.before)),
    element("td", { class: "number" }, percent(row.after)),
  );
}

function showDistribution(recorded, step, textOf) {
  byId("distribution").hidden = !recorded;
  if (!recorded) return;
  const changes = new Map(step.candidates.map((one) => [one.token, one.change]));
  const { rows, rest } = distributions(recorded.ids, recorded.logits, recorded.logNormaliser, changes, recorded.chosen);
  const shown = rows
    .sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after))
    .filter((row, i) => i < SHOWN_PROBABILITIES || row.chosen);
  const largest = Math.max(...shown.map((row) => Math.max(row.before, row.after)), 1e-9);
  const head = tableHead(["token"], ["grey: before, coloured: after"], ["before", "number"], ["after", "number"]);
  const body = shown.map((row) => probabilityRow(tokenName(textOf(row.token)), row, largest));
  body.push(probabilityRow("not recorded", rest, largest));
  const table = byId("probabilities");
  table.replaceChildren(table.caption, head, element("tbody", {}, ...body));
  byId("distribution-note").textContent =
    `After: with the settings above. Framed: the token that the run “${recorded.run}” chose. ` +
    "Only the most likely tokens were recorded; the others count as unpenalised.";
}
