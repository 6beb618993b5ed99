// Which rows are shown, in which order.

const ORDERS = {
  "File order": (a, b) => a.row - b.row,
  "Lowest score first": (a, b) => (a.score ?? 2) - (b.score ?? 2) || a.row - b.row,
  "Highest score first": (a, b) => (b.score ?? -1) - (a.score ?? -1) || a.row - b.row,
  "Most flagged windows first": (a, b) => flagged(b) - flagged(a) || a.row - b.row,
};

const flagged = (row) => (row.findings ?? []).filter((finding) => finding.label === "inconsistent").length;
const ANY = "";
const NONE = "none";

/** Filters by a choice: its name, title, and the values that a row has of it. */
const CHOICES = [
  { name: "label", title: "Label", of: (row) => [row.label ?? NONE] },
  { name: "status", title: "Status", of: (row) => [row.status] },
  { name: "gold", title: "Gold label", of: goldOf },
  { name: "summarizer", title: "Summariser", of: (row) => [row.summarizer ?? NONE] },
  { name: "dataset", title: "Data set", of: (row) => [row.dataset ?? NONE] },
  { name: "error", title: "Error type", of: (row) => (row.error_types?.length ? row.error_types : [NONE]) },
];

function goldOf(row) {
  if (!row.gold) return [NONE];
  const differs = row.label && row.label !== row.gold;
  return differs ? [row.gold, "differs from the model's"] : [row.gold];
}

const normal = (text) => text.normalize("NFC").toLowerCase();

/** What the search looks through; each text is prepared once, when it is first needed. */
class Haystacks {
  #rows = new Map();
  #documents = new Map();

  constructor(data) {
    this.data = data;
  }

  holds(row, needles) {
    const own = this.#prepared(this.#rows, row.index, () => this.#ownText(row));
    const place = this.data.places[row.index];
    return needles.every((needle) => own.includes(needle) || (place !== null && this.#document(place).includes(needle)));
  }

  #ownText(row) {
    const asked = (row.findings ?? []).flatMap((finding) => [finding.question, finding.entity, finding.reasoning]);
    return [row.id, row.summary, row.message, ...asked].filter(Boolean).join("\n");
  }

  #document(place) {
    const pieces = this.data.documents[place].pieces;
    return this.#prepared(this.#documents, place, () => pieces.map((piece) => piece.text).join("\n"));
  }

  #prepared(kept, key, text) {
    if (!kept.has(key)) kept.set(key, normal(text()));
    return kept.get(key);
  }
}

/** The form's choices that the data have values for, with the number of rows of each. */
function fillForm(form, rows) {
  for (const name of Object.keys(ORDERS)) form.elements.order.append(make("option", {}, name));
  const box = form.querySelector(".filters");
  for (const choice of CHOICES) {
    const counts = new Map();
    for (const row of rows) for (const value of choice.of(row)) counts.set(value, (counts.get(value) ?? 0) + 1);
    if (counts.size === 0 || (counts.size === 1 && counts.has(NONE))) continue;
    const values = [...counts.keys()].sort((a, b) => (a === NONE) - (b === NONE) || a.localeCompare(b, "en"));
    const options = values.map((value) => make("option", { value }, `${words(value)} (${number(counts.get(value))})`));
    const select = make("select", { name: choice.name }, make("option", { value: ANY }, "All"), ...options);
    box.append(make("label", {}, make("span", {}, choice.title), select));
  }
  const bound = (name, title, hint) => {
    const input = make("input", { type: "number", name, min: 0, max: 1, step: "any", placeholder: hint });
    return make("label", { class: "bound" }, make("span", {}, title), input);
  };
  box.append(bound("low", "Score from", "0"), bound("high", "Score to", "1"));
  box.append(make("button", { type: "reset", class: "quiet" }, "Reset"));
}

/** The rows that fit the form, in its order. */
function matching(form, rows, haystacks) {
  const fields = form.elements;
  const wanted = CHOICES.filter((choice) => fields[choice.name]?.value);
  const low = fields.low.value === "" ? null : Number(fields.low.value);
  const high = fields.high.value === "" ? null : Number(fields.high.value);
  const needles = normal(fields.query.value).split(/\s+/).filter(Boolean);
  const fits = (row) =>
    wanted.every((choice) => choice.of(row).includes(fields[choice.name].value)) &&
    (low === null || (row.score ?? -1) >= low) &&
    (high === null || (row.score ?? 2) <= high) &&
    (needles.length === 0 || haystacks.holds(row, needles));
  return rows.filter(fits).sort(ORDERS[fields.order.value]);
}

function numChosen(form) {
  const fields = form.elements;
  const names = [...CHOICES.map((choice) => choice.name), "low", "high"];
  return names.filter((name) => fields[name]?.value).length;
}
