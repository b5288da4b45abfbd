// A step over several values of its fields at once: each cell opens in the step's own view.

import { front, write } from "./answer.js";
import { figures } from "./grid.js";
import { cards, copies, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const MOST_ROWS = 200; // of the table; its file has all

// The address of a row's step: its own values, else those that all rows share.
function address(row, values) {
  const own = Object.entries(values).filter(([name]) => name !== "where").map(([name, value]) => [name, row[name] ?? (/[,.]\.|,/.test(value) ? "" : value)]);
  return `#step?${new URLSearchParams({ system: "", ...Object.fromEntries(own.filter(([, value]) => value !== "" && value !== null)) })}`;
}

function draw(answer, head, values) {
  const rows = answer.grid ?? [];
  if (!rows.length) return [make("p", { class: "error", role: "alert" }, "No row could be predicted that differs from another: give a field several values, such as 1,2,4."), copies(head)];
  const known = rows.filter((row) => units.known(row.predicted_s)).sort((a, b) => a.predicted_s - b.predicted_s);
  const names = Object.keys(values).filter((name) => rows.some((row) => row[name] !== undefined));
  const said = (row) => names.map((name) => `${name} ${units.words(row[name])}`).join(", ");
  const best = known[0];
  return [
    cards([
      ["the quickest step", units.time(best.predicted_s), said(best), best.predicted_s],
      ["rows", units.whole(answer.points), `${units.whole(known.length)} of ${units.whole(rows.length)} that are drawn are predicted`, answer.points],
    ]),
    copies(head),
    section("Cells, front, axes", ...figures(rows, write, front, (row) => address(row, values))),
    section("The quickest", table("Rows", [...names.map((name) => ({ name, label: name, words: true, write: units.words })), ...Object.keys(rows[0]).filter((name) => !names.includes(name) && typeof rows[0][name] === "number").map((name) => ({ name, label: name.replaceAll("_", " "), write: (value) => write(name, value) }))], known.slice(0, MOST_ROWS), { name: "grid", every: rows })),
  ];
}

export function show(root) {
  const grid = new Asked("grid", "grid", draw, { wait: 400, stop: true, say: (answer) => `${units.whole(answer.points)} rows` });
  root.append(grid.node);
  return { refused: (words) => grid.refused(words), changed: (values) => grid.ask(values) };
}
