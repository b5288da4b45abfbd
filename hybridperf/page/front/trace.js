// A recorded run: breakdown, why the device waited, what a change would save.

import { bars, cards, copies, legend, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const readable = (name) => name.replace(/_s$/, "").replaceAll("_", " ");

function columnsOf(rows, first = 12) {
  return Object.keys(rows[0] ?? {}).slice(0, first).map((name) => ({
    name, label: readable(name), words: !/_s$|^seconds$|share|^events$|^n_/.test(name), long: name === "name" || name === "op",
    write: /_s$|^seconds$/.test(name) ? units.time : /share/.test(name) ? units.percent : (v) => (typeof v === "number" ? units.digits(v) : units.words(v)),
  }));
}

// What the device did, and why it waited: these add up to the time from its first work to its last.
const PARTS = ["computation_s", "exposed_copy_s", "exposed_comm_s", "launch_bound_s", "synchronisation_s", "host_copy_s", "dependency_s", "unrecorded_s"];

function drawSummary(answer, head) {
  const sum = (row) => PARTS.reduce((all, one) => all + (row[one] ?? 0), 0);
  const named = (row) => `${row.step}${units.known(row.rank) ? `, rank ${row.rank}` : ""}`;
  const longest = answer.steps.reduce((a, b) => (sum(b) > sum(a) ? b : a));
  const parts = PARTS.map((one, hue) => ({ label: readable(one), parts: [[longest[one] ?? 0, hue]], words: units.time(longest[one]) }));
  return [
    copies(head),
    section(`Where the time of ${named(longest)} went`,
      cards([["first to last work", units.time(longest.gpu_span_s), longest.gpu, longest.gpu_span_s], ["busy", units.time(longest.gpu_busy_s), units.percent(longest.gpu_busy_s / longest.gpu_span_s), longest.gpu_busy_s], ["idle", units.time(longest.idle_s), "by what it waited for, below", longest.idle_s]]),
      bars(parts, Math.max(...PARTS.map((one) => longest[one] ?? 0)))),
    section("All steps", bars(answer.steps.slice(0, 40).map((row) => ({ label: named(row), parts: PARTS.map((one, hue) => [row[one] ?? 0, hue]), words: units.time(sum(row)), title: PARTS.map((one) => `${readable(one)} ${units.time(row[one])}`).join(", ") })), sum(longest)), legend(PARTS.map((one, hue) => [readable(one), hue])), table("Steps", columnsOf(answer.steps, 30).slice(1), answer.steps.slice(0, 100))),
    section("Top ops", table("By device time", columnsOf(answer.ops), answer.ops.slice(0, 25), { every: answer.ops })),
    section("Top kernels", table("By time", columnsOf(answer.kernels), answer.kernels.slice(0, 25), { every: answer.kernels })),
  ];
}

function drawReplay(answer, head) {
  const [first] = answer.steps;
  const savings = Object.entries(answer).filter(([name]) => name.startsWith("savings of "));
  return [
    make("p", {}, answer.changes.length ? `With ${answer.changes.join(", ")}.` : "As it was recorded."),
    cards(Object.entries(first).filter(([name, value]) => /_s$/.test(name) && units.known(value)).slice(0, 6).map(([name, value]) => [readable(name), units.time(value), "", value])),
    copies(head),
    ...savings.map(([name, rows]) => table(name.replace("savings of ", "What an op would save if it took no time: "), columnsOf(rows), rows.slice(0, 25))),
  ];
}

export function show(root, { form }) {
  // a trace that cannot be read is told of once
  const summary = new Asked("trace", "summary", (answer, head) => {
    change.hidden = false;
    replay.ask(form.values());
    return drawSummary(answer, head);
  }, { stop: true, refused: () => { change.hidden = true; } });
  const replay = new Asked("trace", "replay", drawReplay, { stop: true, wait: 200 });
  const hint = make("p", {}, "Drop a trace into the field: one file of PyTorch's profiler (Kineto). It stays on this machine.");
  const change = section("What limits it, what a change would save", replay.node);
  change.hidden = true;
  root.append(hint, change, summary.node);
  return {
    refused: (words) => summary.refused(words),
    changed(values, name, done) {
      if (!values.file || !done) return;
      hint.hidden = true;
      if (name === "file") summary.ask({ file: values.file });
      else replay.ask(values);
    },
  };
}
