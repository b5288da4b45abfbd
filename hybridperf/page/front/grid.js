// Rows of a sweep: the best of each cell of two columns, the front of two others, and parallel axes
// whose ranges are brushed: what lies outside is left out of all three.

import { figure, scatter } from "./draw.js";
import { make } from "./parts.js";
import * as units from "./units.js";

const MOST_CELLS = 40; // values of an axis of the heat map
const FEW = 12; // values of a column that stand side by side, evenly
const MOST_AXES = 10;
const MOST_FACETS = 8;
const HEIGHT = 280;
const EDGE = 26;

const numeric = (rows, name) => rows.some((row) => typeof row[name] === "number");
const given = (value) => value !== null && value !== undefined && value !== "";

function distinct(rows, name) {
  const values = [...new Set(rows.map((row) => row[name]).filter(given))];
  return numeric(rows, name) ? values.sort((a, b) => a - b) : values.sort();
}

// Where the values of a column lie, from 0 to 1.
function axisOf(rows, name) {
  const values = distinct(rows, name);
  const ends = [values[0], values.at(-1)];
  if (!numeric(rows, name) || values.length <= FEW) {
    const order = new Map(values.map((one, at) => [one, values.length > 1 ? at / (values.length - 1) : 0.5]));
    return { name, marks: values.length <= FEW ? values : ends, place: (value) => order.get(value) };
  }
  const of = ends[0] > 0 && ends[1] > 10 * ends[0] ? Math.log : (one) => one;
  return { name, marks: ends, place: (value) => (given(value) ? (of(value) - of(ends[0])) / (of(ends[1]) - of(ends[0])) : undefined) };
}

function heat(all, rows, asked, write, address, of = "") {
  const [xs, ys] = [distinct(all, asked.x), distinct(all, asked.y)];
  const sign = asked.best === "most" ? -1 : 1;
  const best = new Map();
  for (const row of rows) {
    const key = `${xs.indexOf(row[asked.x])} ${ys.indexOf(row[asked.y])}`;
    if (units.known(row[asked.hue]) && !(sign * best.get(key)?.[asked.hue] <= sign * row[asked.hue])) best.set(key, row);
  }
  const found = [...best.values()].map((row) => row[asked.hue]).sort((a, b) => a - b);
  const words = `${of}The ${asked.best} ${asked.hue} of the rows of each ${asked.x} and ${asked.y}; the darker, the more. A row's other columns show where the pointer rests${address ? "; a click opens its step" : ""}.`;
  return figure(words, (width) => {
    const [left, bottom] = [90, 22];
    const [wide, high] = [(width - left) / xs.length, Math.min(34, Math.max(12, 420 / ys.length))];
    const svg = make("svg", { width, height: ys.length * high + bottom });
    ys.forEach((y, line) => {
      const top = (ys.length - 1 - line) * high;
      svg.append(make("text", { x: left - 6, y: top + high / 2 + 4, "text-anchor": "end" }, `${line === ys.length - 1 ? `${asked.y} ` : ""}${write(asked.y, y)}`));
      xs.forEach((x, column) => {
        const row = best.get(`${column} ${line}`);
        if (!row) return;
        const share = found.length > 1 ? found.indexOf(row[asked.hue]) / (found.length - 1) : 0.5;
        const at = { x: left + column * wide, y: top };
        const said = Object.entries(row).filter(([, one]) => given(one)).map(([name, one]) => `${name} ${write(name, one)}`).join(", ");
        svg.append(make("rect", { class: address ? "k0 opens" : "k0", ...at, width: Math.max(1, wide - 1), height: high - 1, "fill-opacity": 0.1 + 0.75 * share, onclick: () => { if (address) location.hash = address(row); } }, make("title", {}, said)));
        if (wide > 48) svg.append(make("text", { x: at.x + wide / 2, y: top + high / 2 + 4, "text-anchor": "middle", "pointer-events": "none" }, write(asked.hue, row[asked.hue])));
      });
    });
    const every = Math.ceil(60 / wide);
    xs.forEach((x, column) => column % every || svg.append(make("text", { x: left + (column + 0.5) * wide, y: ys.length * high + 15, "text-anchor": "middle" }, `${column ? "" : `${asked.x} `}${write(asked.x, x)}`)));
    return svg;
  });
}

function parallel(rows, inside, axes, brushes, write, changed) {
  const words = "Each line is a row. Drag along an axis to keep the rows within; a click on it keeps all again.";
  return figure(words, (width) => {
    const svg = make("svg", { width, height: HEIGHT });
    const of = axes.map((one, at) => ({ ...one, at: EDGE * 2 + (at * (width - 4 * EDGE)) / Math.max(1, axes.length - 1) }));
    const [top, bottom] = [EDGE, HEIGHT - EDGE];
    const height = (share) => bottom - share * (bottom - top);
    const faint = Math.max(0.06, Math.min(0.5, 40 / inside.size));
    for (const [group, opacity, hue] of [[rows.filter((one) => !inside.has(one)), 0.04, 7], [[...inside], faint, 0]]) {
      for (const row of group) {
        const places = of.map((one) => [one.at, one.place(row[one.name])]).filter(([, share]) => share !== undefined);
        svg.append(make("path", { class: `line k${hue}`, "stroke-opacity": opacity, d: `M${places.map(([x, share]) => `${x},${height(share)}`).join("L")}` }));
      }
    }
    for (const one of of) {
      svg.append(make("line", { class: "axis", x1: one.at, x2: one.at, y1: top, y2: bottom }),
        make("text", { x: one.at, y: top - 12, "text-anchor": "middle" }, one.name));
      for (const mark of one.marks) svg.append(make("text", { class: "quiet above", x: one.at + 4, y: height(one.place(mark)) + 4 }, write(one.name, mark)));
      const [low, high] = brushes.get(one.name) ?? [0, 0];
      const band = make("rect", { class: "band", x: one.at - 8, width: 16, y: height(high), height: height(low) - height(high) });
      const grip = make("rect", { x: one.at - 14, width: 28, y: top - 6, height: bottom - top + 12, "fill-opacity": 0, class: "grip" }, make("title", {}, one.name));
      let from = null;
      const share = (event) => Math.min(1, Math.max(0, (bottom - (event.clientY - svg.getBoundingClientRect().top)) / (bottom - top)));
      grip.addEventListener("pointerdown", (event) => { from = share(event); grip.setPointerCapture(event.pointerId); });
      grip.addEventListener("pointermove", (event) => {
        if (from === null) return;
        const [least, most] = [from, share(event)].sort((a, b) => a - b);
        band.setAttribute("y", height(most));
        band.setAttribute("height", height(least) - height(most));
      });
      grip.addEventListener("pointerup", (event) => {
        const range = [from, share(event)].sort((a, b) => a - b);
        from = null;
        if (range[1] - range[0] > 0.01) brushes.set(one.name, [range[0] - 1e-6, range[1] + 1e-6]);
        else brushes.delete(one.name);
        changed();
      });
      svg.append(band, grip);
    }
    return svg;
  });
}

function menu(label, names, chosen, change, spoken = label) {
  const options = names.map((name) => make("option", { value: name, selected: name === chosen }, name));
  return make("label", {}, `${label} `, make("select", { "aria-label": spoken, onchange: (event) => change(event.target.value) }, ...options));
}

// Figures of rows, `said` writes their values; `front(points, sign)` finds those that no other beats;
// `address(row)`: where a click on a cell leads.
export function figures(rows, said, front, address = null) {
  const write = (name, value) => (Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : said(name, value));
  const names = Object.keys(rows[0]).filter((name) => name !== "front" && distinct(rows, name).length > 1);
  const numbers = names.filter((name) => numeric(rows, name));
  const cells = names.filter((name) => distinct(rows, name).length <= MOST_CELLS);
  if (cells.length < 2 || !numbers.length) return [];
  const result = numbers.find((name) => /^predicted_|^days$/.test(name)) ?? numbers.at(-1);
  const other = numbers.find((name) => /memory_bytes|usd|tokens_per_s_gpu|gpu_hours/.test(name)) ?? numbers[0];
  const fields = cells.filter((name) => numeric(rows, name));
  const [x, y] = fields.length > 1 ? fields : cells;
  const asked = { x, y, hue: result, best: "least", one: result, other, sense: "least", apart: "" };
  const few = cells.filter((name) => distinct(rows, name).length <= MOST_FACETS);
  const axes = [...new Set([...cells.slice(0, MOST_AXES - 2), result, other])].map((name) => axisOf(rows, name));
  const brushes = new Map();
  const place = make("div", {});
  const draw = () => {
    const keeps = (row) => [...brushes].every(([name, [low, high]]) => {
      const share = axes.find((one) => one.name === name).place(row[name]);
      return share >= low && share <= high;
    });
    const kept = rows.filter(keeps);
    const parts = asked.apart ? distinct(rows, asked.apart) : [null];
    const change = (name) => (value) => { asked[name] = value; draw(); };
    const points = kept.filter((row) => units.known(row[asked.one]) && units.known(row[asked.other])).map((row) => ({ x: row[asked.one], y: row[asked.other], hue: 7, words: names.filter((name) => given(row[name])).map((name) => `${name} ${write(name, row[name])}`).join(", ") }));
    const sign = asked.sense === "most" ? -1 : 1;
    const best = points.length ? front(points, sign) : [];
    for (const one of best) [one.hue, one.size] = [0, 5];
    const scaled = (name) => ({ name, write: (value) => write(name, value), log: points.every((one) => one.x > 0 && one.y > 0) });
    place.replaceChildren(
      make("p", { class: "status", "aria-live": "polite" }, `${kept.length} of ${rows.length} rows${brushes.size ? " within what is brushed" : ""}`),
      parallel(rows, new Set(kept), axes, brushes, write, draw),
      make("div", { class: "bar-of-buttons" }, menu("Cells of", cells, asked.x, change("x")), menu("and", cells, asked.y, change("y")), menu("show the", ["least", "most"], asked.best, change("best")), menu("", numbers, asked.hue, change("hue"), "What the cells show"), menu("apart by", ["", ...few], asked.apart, change("apart"))),
      ...parts.map((part) => heat(rows, kept.filter((row) => part === null || row[asked.apart] === part), asked, write, address, part === null ? "" : `${asked.apart} ${write(asked.apart, part)}: `)),
      make("div", { class: "bar-of-buttons" }, menu("Front of the", ["least", "most"], asked.sense, change("sense")), menu("", numbers, asked.one, change("one"), "Across"), menu("and", numbers, asked.other, change("other"))),
      scatter("The line joins the rows that no other beats in both.", points, scaled(asked.one), scaled(asked.other), [best]));
  };
  draw();
  return [place];
}
