// All layouts of a plan: a scatter with its front, a table, two compared, a launch file.

import { scatter } from "./draw.js";
import { cards, copies, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const DEGREES = ["tp", "cp", "ep", "pp", "vp", "dp", "zero", "micro_batch", "accumulation", "recompute", "schedule"];
const PARTS = [["time_s", "time of a step", units.time], ["compute_s", "compute", units.time], ["exposed_comm_s", "exposed communication", units.time], ["bubble_s", "pipeline bubble", units.time], ["host_s", "host", units.time], ["memory_bytes", "memory", units.bytes], ["mfu", "MFU", units.percent], ["energy_j", "energy of a step", (v) => units.quantity(v, "J")]];
const ROWS = 40;
const AXES = [["memory", "memory_bytes", units.bytes], ["tensor parallel", "tp", units.whole], ["pipeline stages", "pp", units.whole], ["micro-batch", "micro_batch", units.whole]];

export const layoutWords = (row) => DEGREES.filter((one) => !["1", "none", "1f1b", "0"].includes(String(row[one]))).map((one) => `${one.replaceAll("_", " ")} ${row[one]}`).join(", ") || "one rank";

const ABBREVIATIONS = "tp: tensor parallel, cp: context parallel, ep: expert parallel, pp: pipeline stages, vp: chunks of a stage, dp: data parallel, zero: ZeRO stage, accumulation: micro-batches of a step; what is not named is 1 or none.";

// What the winner spends less on than another layout, the largest first.
function why(winner, other) {
  const less = PARTS.slice(1, 5).map(([name, label]) => [label, other[name] - winner[name]]).filter(([, saved]) => saved > 0).sort((a, b) => b[1] - a[1]).slice(0, 2);
  const because = less.map(([label, saved]) => `${units.time(saved)} less ${label}`).join(" and ");
  const [apart, name] = [other.time_s - winner.time_s, layoutWords(other) === layoutWords(winner) ? other.differs : layoutWords(other)];
  if (apart < 0) return `The winner ranks before ${name}, though a step of that takes ${units.time(-apart)} less.`;
  return `The winner takes ${units.time(apart)} less than ${name}${because ? `: ${because}` : ""}.`;
}

// Rows that no other beats in both columns.
function front(rows, x, y) {
  const sorted = [...rows].sort((a, b) => a[x] - b[x] || a[y] - b[y]);
  let best = Infinity;
  return sorted.filter((row) => row[y] < best && ((best = row[y]), true));
}

export function show(root, { form }) {
  let picked = [];
  let answer = null;
  let head = null;
  const place = make("div", {});
  const launch = new Asked("layouts", "launch", (found, said, values) => [
    make("p", {}, `Layout ${values.row} in ${values.target}:`),
    copies(said),
    ...Object.entries(found.files).map(([name, text]) => make("div", {}, make("h3", {}, name), make("pre", { tabindex: 0, "aria-label": name }, text))),
  ], { stop: true });
  const axis = make("select", { "aria-label": "Axis of the scatter", onchange: () => draw() }, ...AXES.map(([name], at) => make("option", { value: at }, `time over ${name}`)));
  const filter = make("select", { "aria-label": "Which layouts are shown", onchange: () => draw() }, ...["all", "no recomputation", "one node's tensor parallelism at most", "without pipeline"].map((one) => make("option", {}, one)));
  const FILTERS = { "no recomputation": (r) => r.recompute === "none", "one node's tensor parallelism at most": (r) => r.tp <= 8, "without pipeline": (r) => r.pp === 1 };

  function pick(at) {
    picked = picked.includes(at) ? picked.filter((one) => one !== at) : [...picked.slice(-1), at];
    draw();
  }

  function writeLaunch(at) {
    const target = root.querySelector("#target");
    launch.ask({ ...form.values(), target: target.value, row: at + 1 });
  }

  function compared() {
    const [a, b] = picked.length === 2 ? picked : [0, picked[0] ?? 1];
    const [one, two] = [answer.layouts[a], answer.layouts[b]];
    if (!two) return make("p", {}, "There is one layout alone.");
    const rows = [{ what: "layout", a: layoutWords(one), b: layoutWords(two) }, ...PARTS.map(([name, label, write]) => ({ what: label, a: write(one[name]), b: write(two[name]) }))];
    return table(`Layout ${a + 1} beside layout ${b + 1}`, [{ name: "what", label: "" }, { name: "a", label: `layout ${a + 1}`, long: true }, { name: "b", label: `layout ${b + 1}`, long: true }], rows);
  }

  function draw() {
    if (!answer) return;
    const [name, column, write] = AXES[axis.value];
    const kept = answer.layouts.filter(FILTERS[filter.value] ?? (() => true));
    const best = front(kept, column, "time_s");
    const points = kept.map((row) => {
      const at = answer.layouts.indexOf(row);
      return { x: row[column], y: row.time_s, hue: best.includes(row) ? 1 : 0, words: `${at + 1}: ${layoutWords(row)}: ${units.time(row.time_s)}, ${units.bytes(row.memory_bytes)}`, mark: picked.includes(at) || at === 0, pick: () => pick(at) };
    });
    const line = points.filter((one) => one.hue === 1);
    const first = answer.layouts[0];
    const button = (_, row) => make("button", { type: "button", "aria-pressed": picked.includes(answer.layouts.indexOf(row)), onclick: () => pick(answer.layouts.indexOf(row)) }, "compare");
    place.replaceChildren(...[
      cards([
        ["time of a step", units.time(first.time_s), units.interval(first.low_s, first.high_s), first.time_s],
        ["the best layout", layoutWords(first), `${units.whole(answer.legal)} legal ones`],
        ["memory", units.bytes(first.memory_bytes), "of the fullest GPU", first.memory_bytes],
        ["MFU", units.percent(first.mfu), `${units.count(first.tokens_per_s)} tokens per second`, first.mfu],
      ]),
      copies(head),
      make("p", { class: "remark" }, ABBREVIATIONS),
      section("The best of them",
        make("div", { class: "bar-of-buttons" }, axis, filter),
        scatter(`Each point is a layout of the best ${answer.layouts.length}; the line joins those that no other beats in both. The circle is the best. Choose points to compare them.`, points, { name, write, log: true }, { name: "time of a step", write: units.time, log: true }, [line]),
        table("The best layouts", [{ name: "n", label: "", write: (_, row) => answer.layouts.indexOf(row) + 1 }, { name: "pick", label: "", words: true, write: button }, { name: "layout", label: "layout", long: true, words: true, write: (_, row) => layoutWords(row) }, ...PARTS.map(([id, label, one]) => ({ name: id, label, write: one }))], kept.slice(0, ROWS), { chosen: (row) => picked.includes(answer.layouts.indexOf(row)) })),
      section("Two beside each other", compared()),
      section("Why the winner wins", ...answer.compared.slice(1).map((row) => make("p", {}, why(answer.compared[0], row))), table("The winner and what it is compared with", [{ name: "layout", label: "layout", long: true, words: true, write: (_, row) => layoutWords(row) }, { name: "time_s", label: "time", write: units.time }, { name: "chance", label: "winner faster, chance", write: (v, _, at) => (at ? units.percent(v) : units.NONE) }, { name: "overlap", label: "overlap of intervals", write: (v, _, at) => (at ? units.percent(v) : units.NONE) }, ...PARTS.slice(1, 5).map(([id, label, one]) => ({ name: id, label, write: one }))], answer.compared)),
      section("Launch file", make("div", { class: "bar-of-buttons" },
        make("label", { for: "target" }, `For layout ${(picked.at(-1) ?? 0) + 1}, in`),
        make("select", { id: "target" }, ...["torchtitan", "megatron", "nemo", "deepspeed", "maxtext"].map((one) => make("option", {}, one))),
        make("button", { type: "button", onclick: () => writeLaunch(picked.at(-1) ?? 0) }, "Write")), launch.node),
    ].filter(Boolean));
  }

  const plan = new Asked("layouts", "plan", (found, said) => {
    [answer, head, picked] = [found, said, []];
    draw();
    return [place];
  }, { wait: 30, stop: true, say: (found) => `The best of ${units.whole(found.legal)} legal layouts takes ${units.time(found.layouts[0].time_s)}` });
  root.append(plan.node);
  return { refused: (words) => plan.refused(words), changed: (values) => plan.ask(values) };
}
