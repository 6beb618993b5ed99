"use strict";
// Texts and their spans. The offsets of findings count characters (code points); JavaScript's strings count UTF-16
// units, in which an emoji is two. So texts are cut as arrays of code points, never as strings.

/** An element with attributes and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function characters(text) {
  return Array.from(text);
}

function slice(text, start, end) {
  return characters(text).slice(start, end).join("");
}

/**
 * A text as nodes, with a <mark> over each stretch that spans cover.
 *
 * @param text the text; its first character has the offset `first`.
 * @param spans objects with `start` and `end`, as offsets in characters; they may overlap.
 * @param mark makes a <mark>'s attributes from the spans that cover it; null leaves the stretch plain.
 */
function marked(text, first, spans, mark) {
  const all = characters(text);
  const inside = (place) => Math.min(Math.max(place - first, 0), all.length);
  const edges = new Set([0, all.length]);
  for (const span of spans) edges.add(inside(span.start)).add(inside(span.end));
  const cuts = [...edges].sort((a, b) => a - b);
  const nodes = [];
  for (let index = 0; index + 1 < cuts.length; index += 1) {
    const [start, end] = [cuts[index], cuts[index + 1]];
    const covering = spans.filter((span) => inside(span.start) <= start && inside(span.end) >= end);
    const attributes = covering.length ? mark(covering) : null;
    const stretch = all.slice(start, end).join("");
    nodes.push(attributes ? make("mark", attributes, stretch) : stretch);
  }
  return nodes;
}

/** inconsistent, consistent, unknown, or none where there was no claim to judge. */
function stateOf(finding) {
  if (finding.label) return finding.label;
  return finding.status === "no_claims" ? "none" : "unknown";
}

const SEVERITY = ["none", "consistent", "unknown", "inconsistent"];

function worst(findings) {
  return SEVERITY[Math.max(...findings.map((finding) => SEVERITY.indexOf(stateOf(finding))))];
}

/** The summary with what is not supported, or not known, marked; all judged windows carry their findings' places. */
function markedSummary(row, everything) {
  const findings = (row.findings ?? []).map((finding, place) => ({ ...finding, place }));
  return marked(row.summary, 0, findings, (covering) => {
    const state = worst(covering);
    if (!everything && (state === "none" || state === "consistent")) return null;
    return { class: state, "data-findings": covering.map((finding) => finding.place).join(" ") };
  });
}

const words = (name) => name.replaceAll("_", " ");
const number = (value) => value.toLocaleString("en-US");
const score = (value) => (value === undefined || value === null ? "no score" : value.toFixed(3));
