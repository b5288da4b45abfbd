// An answer by itself: what a command's --json holds, drawn, and what the command printed.

import { band, scatter, timeline } from "./draw.js";
import * as grid from "./grid.js";
import { bars, cards, folded, legend, make, notes, section, sortable, table } from "./parts.js";
import * as units from "./units.js";

const MOST_ROWS = 500; // of a table; the rest is counted
const MOST_OPEN = 40; // rows; a longer table is behind a line that opens
const MOST_BARS = 48;
const PASSES = { "forward pass": 0, "backward pass": 4, "gradients of weights": 6, "host: launches": 9 };
// what a recorded device did, and why it waited: these add up to the time from its first work to its last
const PARTS = ["computation_s", "exposed_copy_s", "exposed_comm_s", "other_step_s", "launch_bound_s", "synchronisation_s", "host_copy_s", "dependency_s", "unrecorded_s"];
const SHARE = /(share|error|covered|inside|gain|mfu|goodput|overlap|chance)$/;

const readable = (name) => name.replace(/_bytes_per_s$|_flops_per_s$|(?<!_per)_s$/, "").replaceAll("_", " ");

// How a value is written, by its name, as the command line does (`report/text.py`).
export function write(name, value) {
  if (!units.known(value)) return units.words(value);
  if (/bytes_per_s$/.test(name)) return units.quantity(value, "B/s");
  if (/flops_per_s$/.test(name)) return units.quantity(value, "FLOP/s");
  if (/bytes$/.test(name)) return units.bytes(value);
  if (/_j$/.test(name)) return units.quantity(value / 3600, "Wh");
  if (/(?<!_per)_s$|^seconds$/.test(name)) return units.time(value);
  return SHARE.test(name) ? units.percent(value) : units.digits(value);
}

// CRC-32 of a text, by which a page knows that it is as it was written (`report/answer_page.py`).
export function sum(text) {
  let found = -1;
  for (const byte of new TextEncoder().encode(text)) {
    found ^= byte;
    for (let bit = 0; bit < 8; bit += 1) found = (found >>> 1) ^ (0xedb88320 & -(found & 1));
  }
  return ((found ^ -1) >>> 0).toString(16).padStart(8, "0");
}

const isRows = (value) => Array.isArray(value) && value.length > 0 && value[0] !== null && typeof value[0] === "object";

function rowsTable(name, rows) {
  const names = [...new Set(rows.slice(0, 20).flatMap(Object.keys))].filter((one) => rows.some((row) => row[one] !== null && row[one] !== "" && typeof row[one] !== "object"));
  const columns = names.map((one) => ({ name: one, label: readable(one), words: !rows.some((row) => typeof row[one] === "number"), long: rows.some((row) => String(row[one]).length > 24), write: (value) => write(one, value) }));
  const left = rows.length - MOST_ROWS;
  return make("div", {}, sortable(table(readable(name), columns, rows.slice(0, MOST_ROWS), { name, every: rows })), left > 0 ? make("p", { class: "quiet" }, `... ${left} more rows are not on this page`) : null);
}

// Rows that no other beats: least x and least y; most of both where `sign` is -1.
export function front(points, sign = 1) {
  let best = Infinity;
  return [...points].sort((a, b) => sign * (a.x - b.x) || sign * (a.y - b.y)).filter((one) => sign * one.y < best && ((best = sign * one.y), true));
}

function hues(groups) {
  return { ...Object.fromEntries(groups.map((one, at) => [one, Math.min(at, 7)])), ...PASSES };
}

const told = (row, names) => names.filter((one) => row[one] !== undefined && row[one] !== null && !["", "1", "none", "0"].includes(String(row[one]))).map((one) => `${readable(one)} ${write(one, row[one])}`).join(", ");

// What is drawn of a known list of rows, above its table.
const DRAWN = {
  timeline(rows, answer) {
    const groups = (answer.breakdown ?? []).map((one) => one.group);
    const of = hues(groups.length ? groups : [...new Set(rows.map((one) => one.group))]);
    return [timeline("What runs when; the red line underneath marks the critical path. Ctrl and wheel zoom, dragging moves, a double click shows all.", rows, of, units.time),
      legend([...new Set(rows.map((one) => one.group))].map((one) => [one, of[one] ?? 7]))];
  },
  breakdown(rows) {
    const of = hues(rows.map((one) => one.group));
    return [make("p", { class: "quiet" }, "Added up over ranks and streams, whether they overlap or not."), bars(rows.slice(0, MOST_BARS).map((one) => ({ label: one.group, parts: [[one.seconds, of[one.group]]], words: units.time(one.seconds) })), Math.max(...rows.map((one) => one.seconds)))];
  },
  roofline(rows, answer) {
    const of = hues([...new Set(rows.map((one) => one.group))]);
    const points = rows.map((one) => ({ x: one.intensity, y: one.flops_per_s, hue: of[one.group], size: 3 + 12 * Math.sqrt(one.share), words: `${one.label} (${one.group}; ${one.sizes}): ${units.quantity(one.flops_per_s, "FLOP/s")}, ${units.time(one.total_s)} all together` }));
    const xs = points.map((one) => one.x);
    const roofs = [...new Set(rows.map((one) => one.peak_flops_per_s))].map((peak) => {
      const ridge = peak / answer.bandwidth_bytes_per_s;
      return [Math.min(...xs, ridge / 2), ridge, Math.max(...xs, ridge * 4)].map((x) => ({ x, y: Math.min(peak, x * answer.bandwidth_bytes_per_s), hue: 7, size: 1, words: `datasheet: ${units.quantity(peak, "FLOP/s")}` }));
    });
    return [scatter("Each kind of op by its arithmetic per byte of compulsory traffic and its predicted rate; areas are shares of seconds, lines are the datasheet's. Ops above a line read from a cache.", [...points, ...roofs.flat()], { name: "flops per byte", log: true }, { name: "rate", log: true, write: (v) => units.quantity(v, "FLOP/s") }, roofs),
      legend([...new Set(rows.map((one) => one.group))].map((one) => [one, of[one]]))];
  },
  layouts(rows, answer) {
    const names = ["tp", "cp", "ep", "pp", "vp", "dp", "zero", "micro_batch", "accumulation", "recompute", "schedule"];
    const points = rows.map((row, at) => ({ x: row.memory_bytes, y: row.time_s, low: row.low_s, high: row.high_s, hue: 7, mark: at === 0, words: `${at + 1}: ${told(row, names)}: ${units.time(row.time_s)}` }));
    const best = front(points);
    for (const one of points) if (!best.includes(one)) one.low = 0;
    for (const one of best) one.hue = 0;
    const edges = [Math.min(...points.map((one) => one.y)), Math.max(...points.map((one) => one.y))];
    const limit = units.known(answer.capacity_bytes) ? edges.map((y) => ({ x: answer.capacity_bytes, y, hue: 3, size: 1, words: `memory that may be used: ${units.bytes(answer.capacity_bytes)}` })) : [];
    const limited = limit.length ? ", the upright one is the memory that may be used" : "";
    return [scatter(`Each point is a layout; the line joins those that no other beats in both${limited}, the circle is the best, short upright lines are 90 % intervals of those on it.`, [...points, ...limit], { name: "memory of the fullest GPU", write: units.bytes, log: true }, { name: "time of a step", write: units.time, log: true }, [best, limit])];
  },
  deployments(rows) {
    const names = ["replicas", "tp", "pp", "attention_dp", "expert_ep", "mode", "quant", "sequences"];
    const points = rows.map((row, at) => ({ x: row.tokens_per_s_user, y: row.tokens_per_s_gpu, low: row.front ? row.tokens_per_s_gpu_low : 0, high: row.front ? row.tokens_per_s_gpu_high : 0, hue: row.within ? 2 : 7, mark: at === 0, words: told(row, names) }));
    return [scatter("Each point is a deployment; green ones are within the limits, the circle is the best. The line is the front, upright lines are its 90 % intervals.", points, { name: "tokens per second of a user", log: true }, { name: "tokens per second and GPU", log: true }, [front(points, -1)])];
  },
  grid: (rows) => grid.figures(rows, write, front),
  steps(rows) {
    const parts = PARTS.filter((name) => rows.some((row) => row[name] > 0));
    if (!parts.length) return [];
    const sum = (row) => parts.reduce((all, name) => all + (row[name] ?? 0), 0);
    return [bars(rows.slice(0, MOST_BARS).map((row) => ({ label: `${row.step}${units.known(row.rank) ? `, rank ${row.rank}` : ""}`, parts: parts.map((name, hue) => [row[name] ?? 0, hue]), words: units.time(sum(row)), title: parts.map((name) => `${readable(name)} ${units.time(row[name])}`).join(", ") })), Math.max(...rows.map(sum))),
      legend(parts.map((name, hue) => [readable(name), hue]))];
  },
};

// Key figures with their intervals, then each part of the answer, then the printed text.
export function show(root, answer, printed) {
  const numbers = Object.entries(answer).filter(([name, value]) => units.known(value) && !["low_s", "high_s"].includes(name));
  const interval = (name) => (name === "time_s" || name === "step_s" ? units.interval(answer.low_s, answer.high_s) : "");
  if (numbers.length) root.append(cards(numbers.map(([name, value]) => [readable(name), write(name, value), interval(name), value])));
  if (units.known(answer.time_s)) root.append(band("The prediction with its 90 % interval.", answer.time_s, answer.low_s ?? null, answer.high_s ?? null, units.time));
  for (const [name, value] of Object.entries(answer)) {
    const title = readable(name)[0].toUpperCase() + readable(name).slice(1);
    if (isRows(value)) {
      const drawn = DRAWN[name]?.(value, answer) ?? [];
      root.append(section(title, ...drawn, drawn.length || value.length > MOST_OPEN ? folded("As a table", rowsTable(name, value)) : rowsTable(name, value)));
    } else if (Array.isArray(value)) {
      if (value.some((one) => one !== "")) root.append(section(title, notes(value.map(String))));
    } else if (typeof value === "string" && value.length) root.append(section(title, make("p", {}, value)));
    else if (value !== null && typeof value === "object" && Object.keys(value).length) root.append(section(title, rowsTable(name, Object.entries(value).map(([what, of]) => ({ what, value: typeof of === "number" ? units.digits(of) : units.words(of) })))));
  }
  root.append(section("As the command prints it", make("pre", { tabindex: 0, "aria-label": "As the command prints it" }, printed)));
}
