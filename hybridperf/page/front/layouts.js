// All layouts of a plan: a scatter with its front, a table, two compared, a launch file.

import { front } from "./answer.js";
import { scatter } from "./draw.js";
import { strip } from "./drivers.js";
import { bars, cards, copies, legend, make, notes, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const PARTS = [["time_s", "time of a step", units.time], ["compute_s", "compute", units.time], ["exposed_comm_s", "exposed communication", units.time], ["bubble_s", "pipeline bubble", units.time], ["host_s", "host", units.time], ["memory_bytes", "memory", units.bytes], ["mfu", "MFU", units.percent], ["energy_j", "energy of a step", (v) => units.quantity(v, "J")]];
const BREAKDOWN = PARTS.slice(1, 5);
const ROWS = 40;
const AXES = [["memory", "memory_bytes", units.bytes], ["tensor parallel", "tp", units.whole], ["pipeline stages", "pp", units.whole], ["micro-batch", "micro_batch", units.whole]];

const ABBREVIATIONS = "How many GPUs share what: tp matrices, cp the sequence, pp layers (in vp chunks a stage), dp samples, ep experts. ZeRO-1 shards optimizer states, -2 gradients as well, -3 weights as well. 4 x micro-batch 2: a GPU takes 2 samples 4 times a step. What is not named is 1 or off.";
const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1)}.`;
const order = (row) => row.order.split(" ").filter((one) => row[one] > 1).join(" ") || units.NONE;

// How the winner's parts differ from another layout's, the largest difference first.
function why(winner, other) {
  const apart = other.time_s - winner.time_s;
  const parts = BREAKDOWN.map(([name, label]) => [label, other[name] - winner[name]]).filter(([, more]) => Math.abs(more) > 0.02 * Math.abs(apart)).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const because = parts.map(([label, more]) => `${units.time(Math.abs(more))} ${more > 0 ? "more" : "less"} ${label}`).join(", ");
  const longer = apart < 0 ? `${units.time(-apart)} less, and ranks behind it all the same` : `${units.time(apart)} longer (${units.percent(apart / winner.time_s)})`;
  const sure = other.chance < 1 ? ` The winner is the faster of the two with a chance of ${other.chance > 0.999 ? "over 99.9 %" : units.percent(other.chance)}.` : "";
  return make("p", {}, make("strong", {}, sentence(other.what).slice(0, -1)), ` (${other.layout}): a step takes ${longer}${because ? `: ${because}` : ""}.${sure}`);
}

// What a step of each compared layout consists of, on one scale.
function parts(rows) {
  const hues = [0, 1, 4, 7];
  const made = rows.map((row) => ({ label: row.what, parts: BREAKDOWN.map(([name], at) => [row[name], hues[at]]), words: units.time(row.time_s), title: BREAKDOWN.map(([name, label]) => `${label} ${units.time(row[name])}`).join(", ") }));
  return make("div", {}, bars(made, Math.max(...rows.map((row) => row.time_s))), legend(BREAKDOWN.map(([, label], at) => [label, hues[at]])));
}

// The address of a layout's step.
function address(row, values) {
  const same = ["tp", "pp", "vp", "cp", "ep", "micro_batch", "global_batch", "recompute", "schedule"].map((name) => [name, row[name]]);
  const asked = { model: values.shape, system: values.system, gpu: "", n_gpus: row.gpus, sharding: row.zero ? `zero${row.zero}` : "none", seq: values.seq, framework: values.framework };
  return `#step?${new URLSearchParams(Object.entries({ ...asked, ...Object.fromEntries(same) }).filter(([name, value]) => name === "gpu" || value))}`;
}

export function show(root, { form, asks }) {
  const served = asks.includes("launch"); // an exported page answers what it holds alone
  let picked = [];
  let answer = null;
  let head = null;
  let asked = null; // the values that the answer is of
  let driven = 0; // the layout whose numbers are weighed
  const place = make("div", {});
  const launch = new Asked("layouts", "launch", (found, said, values) => [
    make("p", {}, `Row ${values.row} in ${values.target}:`),
    copies(said),
    ...Object.entries(found.files).map(([name, text]) => make("div", {}, make("h3", {}, name), make("pre", { tabindex: 0, "aria-label": name }, text))),
  ], { stop: true });
  const axis = make("select", { "aria-label": "Axis of the scatter", onchange: () => redraw() }, ...AXES.map(([name], at) => make("option", { value: at }, `time over ${name}`)));
  const filter = make("select", { "aria-label": "Which layouts are shown", onchange: () => redraw() }, ...["all", "no recomputation", "one node's tensor parallelism at most", "without pipeline"].map((one) => make("option", {}, one)));
  const FILTERS = { "no recomputation": (r) => r.recompute === "none", "one node's tensor parallelism at most": (r) => r.tp <= 8, "without pipeline": (r) => r.pp === 1 };

  function pick(at) {
    picked = picked.includes(at) ? picked.filter((one) => one !== at) : [...picked.slice(-1), at];
    redraw();
    if ((picked.at(-1) ?? 0) !== driven) drive(picked.at(-1) ?? 0);
  }

  function drive(at) {
    driven = at;
    worth.ask({ ...asked, row: answer.layouts[at].row });
  }

  // Whoever moves by keyboard stays where they are, and so does the table.
  function redraw() {
    const held = document.activeElement?.getAttribute("aria-label");
    const scrolled = place.querySelector(".scroll")?.scrollTop ?? 0;
    draw();
    place.querySelector(".scroll").scrollTop = scrolled;
    if (held) place.querySelector(`[aria-label="${held}"]`)?.focus({ preventScroll: true });
  }

  function writeLaunch() {
    const [target, row] = ["#target", "#row"].map((one) => root.querySelector(one).value);
    launch.ask({ ...form.values(), target, row });
  }

  function compared() {
    const [a, b] = picked.length === 2 ? picked : [0, picked[0] ?? 1];
    const [one, two] = [answer.layouts[a], answer.layouts[b]];
    if (!two) return make("p", {}, "There is one layout alone.");
    const rows = [{ what: "layout", a: one.layout, b: two.layout }, { what: "neighbours first", a: order(one), b: order(two) }, ...PARTS.map(([name, label, write]) => ({ what: label, a: write(one[name]), b: write(two[name]) }))];
    return table(`Layout ${one.row} beside layout ${two.row}`, [{ name: "what", label: "" }, { name: "a", label: `layout ${one.row}`, long: true }, { name: "b", label: `layout ${two.row}`, long: true }], rows);
  }

  function draw() {
    if (!answer) return;
    const [name, column, write] = AXES[axis.value];
    const kept = answer.layouts.filter(FILTERS[filter.value] ?? (() => true));
    const points = kept.map((row) => {
      const at = answer.layouts.indexOf(row);
      return { x: row[column], y: row.time_s, words: `${row.row}: ${row.layout}: ${units.time(row.time_s)}, ${units.bytes(row.memory_bytes)}`, mark: picked.includes(at) || at === 0, pick: () => pick(at) };
    });
    const line = front(points);
    for (const one of line) one.hue = 1;
    const first = answer.layouts[0];
    const button = (_, row) => make("button", { type: "button", "aria-label": `compare layout ${row.row}`, "aria-pressed": String(picked.includes(answer.layouts.indexOf(row))), onclick: () => pick(answer.layouts.indexOf(row)) }, "compare");
    place.replaceChildren(...[
      cards([
        ["time of a step", units.time(first.time_s), units.interval(first.low_s, first.high_s), first.time_s],
        ["the best layout", first.layout, `${units.whole(answer.legal)} legal ones`],
        ["memory", units.bytes(first.memory_bytes), "of the fullest GPU", first.memory_bytes],
        ["MFU", units.percent(first.mfu), `${units.count(first.tokens_per_s)} tokens per second`, first.mfu],
      ]),
      copies(head),
      make("p", { class: "remark" }, ABBREVIATIONS),
      section("The best of them",
        make("div", { class: "bar-of-buttons" }, axis, filter),
        scatter(`Each point is a layout of the best ${answer.layouts.length}; the line joins those that no other beats in both. The circle is the best. Choose points to compare them.`, points, { name, write, log: true }, { name: "time of a step", write: units.time, log: true }, [line]),
        table("The best layouts", [{ name: "row", label: "row", write: units.whole }, { name: "pick", label: "", words: true, write: button }, { name: "layout", label: "layout", long: true }, ...PARTS.slice(0, -1).map(([id, label, one]) => ({ name: id, label, write: one })), ...(served ? [{ name: "open", label: "", words: true, write: (_, row) => make("a", { href: address(row, form.values()), "aria-label": `open layout ${row.row} in Step` }, "open") }] : [])], kept.slice(0, ROWS), { name: "layouts", every: kept, chosen: (row) => picked.includes(answer.layouts.indexOf(row)) })),
      section("Two beside each other", compared()),
      section("Why the winner wins", parts(answer.compared), ...answer.compared.slice(1).map((row) => why(answer.compared[0], row)), answer.compared.some((row) => row.what === "naive") ? make("p", { class: "remark" }, `Naive: ${answer.naive}.`) : null, ...answer.memory.map((one) => make("p", {}, sentence(one)))),
      served ? section("Launch file", make("div", { class: "bar-of-buttons" },
        make("label", { for: "row" }, "For row"),
        make("input", { id: "row", type: "number", min: 1, max: 400, value: answer.layouts[picked.at(-1) ?? 0].row }),
        make("label", { for: "target" }, "in"),
        make("select", { id: "target" }, ...["torchtitan", "megatron", "nemo", "deepspeed", "maxtext"].map((one) => make("option", {}, one))),
        make("button", { type: "button", onclick: writeLaunch }, "Write")), launch.node) : null,
      section("What was assumed", notes(answer.notes)),
    ].filter(Boolean));
  }

  const worth = strip("layouts", { time_s: { of: "the time", worth: (share) => units.time(share * answer.layouts[driven].time_s) } }, () => `Of the numbers of the machine, for the step of layout ${answer.layouts[driven].row} (${answer.layouts[driven].layout}), by its graph.`);
  const plan = new Asked("layouts", "plan", (found, said, values) => {
    [answer, head, picked, asked] = [found, said, [], values];
    draw();
    drive(0);
    return [place];
  }, { wait: 30, stop: true, refused: () => worth.clear(), say: (found) => `The best of ${units.whole(found.legal)} legal layouts takes ${units.time(found.layouts[0].time_s)}` });
  root.append(plan.node, worth.node);
  return { refused: (words) => plan.refused(words), changed: (values) => plan.ask(values) };
}
