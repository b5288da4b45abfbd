// A machine: facts, how far held-out measurements lie from their prediction, what to measure next.

import { scatter } from "./draw.js";
import { copies, folded, legend, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const WRITE = { measuring_s: units.time, removed: units.percent };
const times = (log) => `×${units.digits(Math.exp(log))}`;

// Quantiles of log(predicted / measured) of each group, as lines over their share.
function residuals(groups) {
  const lines = groups.map((one, hue) => Object.assign(one.errors.map((error, at) => ({
    x: at / (one.errors.length - 1), y: Math.exp(error), hue: Math.min(9, hue), size: 3,
    words: `${one.group}: ${units.percent(at / (one.errors.length - 1))} of held-out rows lie below ${times(error)}`,
  })).slice(1, -1), { hue: Math.min(9, hue) }));
  return scatter("Each point is a quantile of a group's held-out rows, the largest and smallest error left out: 1 is exact, above it the prediction is too slow.", lines.flat(), { name: "share of held-out rows", write: units.percent }, { name: "prediction by measurement", log: true }, lines);
}

// Groups that the same rows were measured for, and so the same errors, as one.
function alike(groups) {
  const found = new Map();
  for (const one of groups) {
    const key = JSON.stringify([one.rows, one.errors]);
    found.set(key, found.has(key) ? { ...one, group: `${found.get(key).group}, ${one.group}` } : one);
  }
  return [...found.values()];
}

function drawShown(answer, head) {
  const groups = alike(answer.groups.filter((one) => one.errors.length));
  return [
    copies(head),
    groups.length
      ? section("Predicted against measured", residuals(groups), legend(groups.map((one, hue) => [one.group, Math.min(9, hue)])), table("Groups of ops", [
        { name: "group", label: "group", long: true }, { name: "rows", label: "measured rows", write: units.whole },
        { name: "half_width", label: "90 % within", write: (v) => (units.known(v) ? `×${(1 + v).toFixed(2)}` : units.NONE) },
        { name: "median", label: "median error", write: (_, row) => times(row.errors[(row.errors.length - 1) / 2]) },
        { name: "compute_efficiency", label: "of peak", write: units.percent }, { name: "memory_efficiency", label: "of bandwidth", write: units.percent }], groups))
      : make("p", {}, "No ops were measured under this name."),
    section("All that is known", make("pre", { tabindex: 0, "aria-label": "All that is known" }, answer.text)),
  ];
}

function drawRows(answer, head) {
  const rows = answer.rows.filter((one) => one.predicted_s !== null);
  const measured = rows.filter((one) => one.time_s > 0);
  const points = measured.map((one) => ({ x: one.time_s, y: one.predicted_s, hue: one.in_range ? 0 : 1, words: `${one.op}: measured ${units.time(one.time_s)}, predicted ${units.time(one.predicted_s)}` }));
  const ends = points.map((one) => one.x);
  const exact = [Math.min(...ends), Math.max(...ends)].map((at) => ({ x: at, y: at, hue: 7, words: "exact" }));
  return [
    make("p", {}, `${rows.length} of ${answer.rows.length} rows predicted, ${measured.length} of them measured.`),
    copies(head),
    measured.length ? scatter("Each point is a row; on the line both are equal. Orange: outside what was measured.", [...points, ...exact], { name: "measured", log: true, write: units.time }, { name: "predicted", log: true, write: units.time }, [exact]) : null,
    table("Rows", [{ name: "op", label: "op" }, { name: "time_s", label: "measured", write: units.time }, { name: "predicted_s", label: "predicted", write: units.time }, { name: "low_s", label: "low", write: units.time }, { name: "high_s", label: "high", write: units.time }, { name: "explained", label: "why", long: true }, { name: "note", label: "note", long: true }], answer.rows.slice(0, 100)),
  ].filter(Boolean);
}

// Median errors of held-out rows over how many rows were fitted on: a line for each kind of op.
function drawCurve(answer, head) {
  const kinds = [...new Set(answer.curve.map((one) => one.op))];
  const lines = kinds.map((kind, at) => Object.assign(answer.curve.filter((one) => one.op === kind).map((one) => ({
    x: one.rows, y: one.median_ape, hue: Math.min(9, at),
    words: `${kind}, ${one.rows} rows: ${units.percent(one.median_ape)}; by knobs alone ${units.percent(one.knobs_ape)}`,
  })), { hue: Math.min(9, at) }));
  return [
    scatter("A fifth of the rows is held out, parts of the others are fitted.", lines.flat(), { name: "rows fitted on", log: true, write: units.whole }, { name: "median error of held-out rows", log: true, write: units.percent }, lines),
    legend(kinds.map((kind, at) => [kind, Math.min(9, at)])),
    copies(head),
    table("Learning curve", [{ name: "op", label: "op" }, { name: "rows", label: "rows fitted on", write: units.whole }, { name: "median_ape", label: "median error", write: units.percent }, { name: "knobs_ape", label: "by knobs alone", write: units.percent }, { name: "noise", label: "noise of the rows", write: units.percent }], answer.curve),
  ];
}

function drawNext(answer, head) {
  const columns = Object.keys(answer.cases[0] ?? {}).map((name) => ({ name, label: name }));
  return [copies(head), folded(`The ${answer.cases.length} shapes`, table("What to measure", columns, answer.cases.slice(0, 200), { every: answer.cases })),
    table("By op", Object.keys(answer.summary[0] ?? {}).map((name) => ({ name, label: name === "removed" ? "variance removed" : name.replace(/_s$/, "").replaceAll("_", " "), words: true, write: WRITE[name] ?? ((v) => (typeof v === "number" ? units.digits(v) : units.words(v))) })), answer.summary)];
}

export function show(root, { form }) {
  const shown = new Asked("machine", "show", drawShown);
  const rows = new Asked("machine", "rows", drawRows, { stop: true });
  const next = new Asked("machine", "next", drawNext, { stop: true });
  const curve = new Asked("machine", "curve", drawCurve, { stop: true });
  const learn = () => curve.ask({ rows: form.values().rows, device: form.values().name });
  const learning = section("Learning curve", make("div", { class: "bar-of-buttons" }, make("button", { type: "button", onclick: learn }, "Fit parts of these rows")), curve.node);
  learning.hidden = true;
  const plan = () => next.ask({ device: form.values().name, model: form.values().name, budget: form.values().budget });
  root.append(rows.node, learning, shown.node, section("What to measure next", make("div", { class: "bar-of-buttons" }, make("button", { type: "button", onclick: plan }, "Find the most informative shapes")), next.node));
  return {
    refused: (words) => rows.refused(words),
    changed(values, name, done) {
      if (!done && name) return;
      if (name !== "rows") next.clear();
      if (name !== "budget") curve.clear();
      learning.hidden = !values.rows;
      if (name !== "rows" && name !== "budget") shown.ask({ name: values.name });
      if (values.rows) rows.ask({ rows: values.rows, model: values.name });
    },
  };
}
