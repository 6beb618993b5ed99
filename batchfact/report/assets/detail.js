// One opened row: the summary with its findings, and the document beside them.

function detail(row, place, documents) {
  const summary = make("p", { class: "text summary-text" }, ...markedSummary(row, true));
  const findings = row.findings ?? [];
  const list = make("ol", { class: "findings" }, ...findings.map((finding, index) => findingItem(row, finding, index)));
  const judged = make(
    "section",
    { class: "judged" },
    make("h3", {}, "Summary"),
    summary,
    row.message ? make("p", { class: "message" }, row.message) : null,
    facts(row),
    make("h3", {}, findings.length === 1 ? "1 finding" : `${findings.length} findings`),
    list,
  );
  const source = documentPane(row, place === null ? null : documents[place]);
  const element = make("div", { class: "detail", id: `detail-${row.row}` }, judged, source);

  const select = (index) => {
    for (const button of list.querySelectorAll("button.finding")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.finding) === index));
    }
    for (const mark of summary.querySelectorAll("mark")) {
      mark.classList.toggle("selected", mark.dataset.findings.split(" ").includes(String(index)));
    }
    showEvidence(source, index);
  };
  element.addEventListener("click", (event) => {
    const button = event.target.closest("button.finding");
    const mark = event.target.closest(".summary-text mark");
    if (button) select(Number(button.dataset.finding));
    else if (mark) select(Number(mark.dataset.findings.split(" ")[0]));
  });
  const first = findings.findIndex((finding) => finding.label === "inconsistent");
  // The evidence is scrolled to once the pane is on the page and has a height.
  if (findings.length) queueMicrotask(() => select(Math.max(first, 0)));
  return element;
}

function facts(row) {
  const named = [
    ["Row", number(row.row)],
    ["Id", row.id],
    ["Status", words(row.status)],
    ["Summariser", row.summarizer],
    ["Data set", row.dataset],
    ["Gold label", row.gold],
    ["Error types", row.error_types?.join(", ")],
  ];
  const shown = named.filter(([, value]) => value);
  return make("dl", { class: "facts" }, ...shown.map(([name, value]) => entry(name, value)));
}

function entry(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function findingItem(row, finding, index) {
  const state = stateOf(finding);
  const button = make(
    "button",
    { type: "button", class: `finding ${state}`, "data-finding": index, "aria-pressed": "false" },
    make("span", { class: `chip ${state}` }, finding.label ?? words(finding.status)),
    make("span", { class: "score" }, finding.score === undefined ? "" : score(finding.score)),
    make("span", { class: "quote" }, slice(row.summary, finding.start, finding.end)),
  );
  const named = [
    ["Asked about", finding.entity],
    ["Question", finding.question],
    ["Reasoning", finding.reasoning],
    ["Label mass", finding.label_mass === undefined ? null : finding.label_mass.toFixed(3)],
  ];
  const shown = named.filter(([, value]) => value);
  if (!shown.length) return make("li", {}, button);
  const title = finding.question ? "Question and reasoning" : finding.reasoning ? "Reasoning" : "More";
  const list = make("dl", {}, ...shown.map(([name, value]) => entry(name, value)));
  return make("li", {}, button, make("details", {}, make("summary", {}, title), list));
}

function documentPane(row, shown) {
  const heading = make("h3", {}, "Document");
  if (!shown) return make("section", { class: "source" }, heading, make("p", { class: "note" }, "It is not in the file."));
  const spans = (row.findings ?? []).flatMap((finding, index) =>
    (finding.evidence ?? []).map((span) => ({ ...span, index })),
  );
  const nodes = [];
  let place = 0;
  for (const piece of shown.pieces) {
    if (piece.start > place) nodes.push(gap(piece.start - place));
    nodes.push(...marked(piece.text, piece.start, spans, (covering) => ({
      class: "evidence",
      "data-findings": [...new Set(covering.map((span) => span.index))].join(" "),
    })));
    place = piece.start + characters(piece.text).length;
  }
  if (shown.length > place) nodes.push(gap(shown.length - place));
  const numShown = shown.pieces.reduce((sum, piece) => sum + characters(piece.text).length, 0);
  const notes = [];
  if (numShown < shown.length) {
    const where = spans.length ? "around the evidence" : "from its beginning";
    notes.push(`Shortened: ${number(numShown)} of ${number(shown.length)} characters are here, ${where}.`);
  }
  if (spans.length) notes.push("Marked: what the model was shown for the chosen finding.");
  else if (row.label) notes.push("The model was shown all of it: no evidence is noted.");
  const text = make(
    "div",
    { class: "text document-text", tabindex: 0, role: "region", "aria-label": "Text of the document" },
    ...nodes,
  );
  const note = make("p", { class: "note" }, notes.join(" "));
  return make("section", { class: "source" }, heading, note, text);
}

function gap(length) {
  return make("span", { class: "gap" }, `… ${number(length)} characters left out …`);
}

/** Mark one finding's evidence, and scroll the document's own pane to it; the page stays where it is. */
function showEvidence(source, index) {
  const pane = source.querySelector(".document-text");
  if (!pane) return;
  let first = null;
  for (const mark of pane.querySelectorAll("mark.evidence")) {
    const isChosen = mark.dataset.findings.split(" ").includes(String(index));
    mark.classList.toggle("selected", isChosen);
    first ??= isChosen ? mark : null;
  }
  if (first) pane.scrollTop += first.getBoundingClientRect().top - pane.getBoundingClientRect().top - 24;
}
