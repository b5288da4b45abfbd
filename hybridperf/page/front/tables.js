// Embedding tables over devices: which holds which, and how even their work is.

import { bars, cards, copies, legend, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const columnsOf = (rows) => Object.keys(rows[0] ?? {}).map((name) => ({
  name, label: name.replace(/_s$/, "").replaceAll("_", " "),
  write: /_s$/.test(name) ? units.time : /bytes/.test(name) ? units.bytes : /share/.test(name) ? units.percent : (v) => (typeof v === "number" ? units.digits(v) : units.words(v)),
  words: !/_s$|bytes|share/.test(name),
}));

function draw(answer, head) {
  const seconds = Object.keys(answer.per_rank[0]).filter((one) => /_s$/.test(one));
  const sum = (row) => seconds.reduce((all, one) => all + row[one], 0);
  const label = (one) => one.replace(/_s$/, "");
  return [
    cards([
      ["time of a step", units.time(answer.step_s), units.interval(answer.low_s, answer.high_s), answer.step_s],
      ["lower bound", units.time(answer.bound_s), answer.proven ? "reached: no placement is faster" : "of all placements", answer.bound_s],
      ["method", answer.method.replaceAll("_", " "), "whose placement is shown"],
    ]),
    copies(head),
    make("p", { class: "quiet" }, "A step lasts as long as the slowest forward pass, the slowest backward pass and two all-to-alls, of bags and of their gradients."),
    section("Work of each device", bars(answer.per_rank.map((row) => ({ label: `device ${row.rank}`, parts: seconds.map((one, hue) => [row[one], hue]), words: units.time(sum(row)) })), Math.max(...answer.per_rank.map(sum))), legend(seconds.map((one, hue) => [label(one), hue])), table("Devices", columnsOf(answer.per_rank), answer.per_rank)),
    section("Which device holds which table", table(`${units.whole(answer.per_table.length)} tables`, columnsOf(answer.per_table), answer.per_table.slice(0, 300), { every: answer.per_table })),
    section("Methods that were tried", make("p", { class: "quiet" }, "Those that are fused are priced as the one kernel that looks up all tables of a device, the others by the sum of their tables (sums)."), table("Candidates", columnsOf(answer.candidates), answer.candidates)),
  ];
}

export function show(root) {
  const shard = new Asked("tables", "shard", draw, { stop: true, wait: 300 });
  const hint = make("p", {}, "Drop a table of embedding tables into the field (.csv, .parquet): name, rows, dim, pooling, a row each.");
  root.append(hint, shard.node);
  return {
    refused: (words) => shard.refused(words),
    changed(values, name, done) {
      if (!values.file || !done) return;
      hint.hidden = true;
      shard.ask(values);
    },
  };
}
