// A training step: time, interval, parts; inside it a timeline, memory, and numbers to drag.

import { band, timeline } from "./draw.js";
import { drivers } from "./drivers.js";
import { described } from "./knobs.js";
import { bars, cards, copies, legend, make, notes, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const PARTS = [["compute_s", "compute", 0], ["exposed_comm_s", "exposed communication", 1], ["bubble_s", "pipeline bubble", 4], ["host_s", "host", 7]];
const HOLDS = { compute: "Computation", "exposed communication": "Communication that nothing hides", "pipeline bubble": "Waiting for other pipeline stages", host: "Waiting for the host's launches" };
const HELD = [["weights_bytes", "weights", 0], ["gradients_bytes", "gradients", 1], ["optimizer_bytes", "optimizer", 2], ["activations_bytes", "activations", 3], ["embedding_head_bytes", "embedding and head", 4], ["workspace_bytes", "workspace", 5], ["overhead_bytes", "overhead", 7]];
const PASSES = { "forward pass": 0, "backward pass": 4, "gradients of weights": 6 };
const FILES = ["program", "export"];
const PROGRAM = [...FILES, "machine"];
const REACH = 2; // powers of two that a slider goes to either side

function summary(row) {
  const fits = row.fits === null ? "not sure that it fits" : row.fits ? "fits" : "does not fit";
  return cards([
    ["time of a step", units.time(row.predicted_s), units.interval(row.low_s, row.high_s), row.predicted_s],
    ["tokens per second", units.count(row.tokens_per_s), "of all GPUs", row.tokens_per_s],
    ["MFU", units.percent(row.mfu), "model FLOPs of the peak", row.mfu],
    ["memory", units.bytes(row.memory_bytes), `of the fullest GPU; ${fits}`, row.memory_bytes],
  ]);
}

function drawStep(answer, head) {
  const row = answer.rows[0];
  if (row.predicted_s === null) return [make("p", { class: "error", role: "alert" }, row.note.replace(/^row 1: /, "")), copies(head)];
  const most = Math.max(...PARTS.map(([name]) => row[name]));
  const [held, ...others] = [...PARTS].sort(([a], [b]) => row[b] - row[a]).map(([name, label]) => [label, row[name] / row.predicted_s]);
  const next = others.filter(([, share]) => share >= 0.01).map(([label, share]) => `${label} ${units.percent(share)}`);
  const parts = PARTS.map(([name, label, hue]) => ({ label, parts: [[row[name], hue]], words: units.time(row[name]), title: units.percent(row[name] / row.predicted_s) }));
  return [
    summary(row),
    band(`The step takes ${units.time(row.predicted_s)}; the band is the 90 % interval.`, row.predicted_s, row.low_s, row.high_s, units.time),
    copies(head),
    section("Where the time goes", make("p", {}, `${HOLDS[held[0]]} holds the step up: ${units.percent(held[1])} of it${next.length ? `; then ${next.join(", ")}` : ""}.`),
      make("p", { class: "quiet" }, "Of the slowest stage; the four add up to the step."), bars(parts, most)),
    section("What was assumed", notes(row.note)),
  ];
}

const COMPARED = [["predicted_s", "time of a step", units.time], ["tokens_per_s", "tokens per second", units.count], ["mfu", "MFU", units.percent], ["memory_bytes", "memory of the fullest GPU", units.bytes], ...PARTS.map(([name, label]) => [name, label, units.time])];

// The same step on two accelerators, number by number.
function drawBeside(one, other, head) {
  if (other.predicted_s === null) return [section(`On ${other.gpu}`, make("p", { class: "error", role: "alert" }, other.note.replace(/^row 1: /, "")), copies(head))];
  const [from, to] = [one.gpu, other.gpu];
  const rows = COMPARED.map(([name, label, write]) => ({ what: label, [from]: one[name], [to]: other[name], times: other[name] / one[name], write }));
  const number = (value, row) => row.write(value);
  const sure = one.high_s < other.low_s || other.high_s < one.low_s;
  return [section(`${to} beside ${from}`,
    cards([[`time of a step on ${to}`, units.time(other.predicted_s), units.interval(other.low_s, other.high_s), other.predicted_s]]),
    make("p", {}, `${units.digits(other.predicted_s / one.predicted_s)} times as long as on ${from}; the two intervals ${sure ? "are apart" : "overlap"}. Its links are those of its own system, or of its datasheet where none is known.`),
    table("Both, number by number", [{ name: "what", label: "" }, { name: from, label: from, write: number }, { name: to, label: to, write: number }, { name: "times", label: "times", write: units.digits }], rows, { name: "beside" }),
    copies(head), notes(other.note))];
}

export function show(root, { form, set }) {
  let base = null; // the answer that sliders of the machine start from
  const result = make("p", { role: "status", "aria-live": "polite" });
  const changedTime = make("strong", { "data-name": "what if" });
  const commands = make("div", {});
  // what is inside is asked for once the step itself has an answer, so that an error is told once
  const step = new Asked("step", "step", (answer, head, values) => {
    const good = answer.rows[0].predicted_s !== null;
    inside.node.hidden = !good || step.node.hidden;
    if (good) inside.ask(values);
    if (good && values.beside) beside.ask({ ...values, gpu: values.beside, system: "" });
    else beside.clear();
    first = answer.rows[0];
    return drawStep(answer, head);
  }, { refused: () => { inside.node.hidden = true; beside.clear(); }, say: (answer) => (answer.rows[0].predicted_s ? `${units.time(answer.rows[0].predicted_s)} a step, ${units.interval(answer.rows[0].low_s, answer.rows[0].high_s)}` : "") });
  let first = null; // the row that another accelerator stands beside
  const beside = new Asked("step", "step", (answer, head) => drawBeside(first, answer.rows[0], head), { wait: 100 });
  const inside = new Asked("step", "inside", (answer, head) => drawInside(answer, head), { wait: 700, stop: true });
  const program = new Asked("step", "program", (answer, head) => drawInside(answer, head), { wait: 300, stop: true });
  const whatIf = new Asked("step", "what_if", (answer, head) => {
    if (!form.values().knobs) return [];
    const { time_s: changed } = answer.what_if ?? { time_s: answer.time_s };
    changedTime.textContent = units.time(changed);
    changedTime.setAttribute("data-value", changed);
    result.replaceChildren("With these changes: ", changedTime, ` a step, ${units.digits(changed / answer.time_s)} times the ${units.time(answer.time_s)} of before.`);
    commands.replaceChildren(copies(head));
    return [];
  });

  function factors() {
    return Object.fromEntries((form.values().knobs ?? "").split(" ").filter(Boolean).map((one) => one.split("=")));
  }

  function drag(knob, times) {
    const found = { ...factors(), [knob]: Number(times.toPrecision(3)) };
    if (found[knob] === 1) delete found[knob];
    set({ knobs: Object.entries(found).map(([name, factor]) => `${name}=${factor}`).join(" ") });
  }

  // Of a number that can be dragged: its slider, and how many times what it is it is made.
  function slider(one) {
    const factor = Number(factors()[one.knob] ?? 1);
    const said = make("span", { class: "number" }, `×${units.digits(factor)}`);
    const range = make("input", { type: "range", min: -REACH, max: REACH, step: 0.05, value: Math.log2(factor), "aria-label": `${described(one).label}, times`, "aria-valuetext": `×${units.digits(factor)}`, "data-knob": one.knob });
    range.addEventListener("input", () => {
      const times = 2 ** Number(range.value);
      said.textContent = `×${units.digits(times)}`;
      range.setAttribute("aria-valuetext", said.textContent);
      drag(one.knob, times);
    });
    return [range, said];
  }

  function reset() {
    set({ knobs: "" });
    for (const slider of root.querySelectorAll("[data-knob]")) {
      slider.value = 0;
      slider.parentElement.lastChild.textContent = "×1";
    }
  }

  function drawInside(answer, head) {
    const dragged = "memory" in answer;
    const groups = answer.breakdown.map((one) => one.group);
    const hues = Object.fromEntries(groups.map((one, at) => [one, at < 7 ? at : 7]));
    hues["host: launches"] = 9;
    const most = Math.max(...answer.breakdown.map((one) => one.seconds));
    const slices = answer.timeline;
    Object.assign(hues, PASSES);
    const made = [
      section(dragged ? "Inside the step" : "The program's step",
        dragged ? null : make("p", { class: "quiet" }, "Of the program that was dropped, on the accelerator beside it: the model, the GPUs and the layout above do not count."),
        cards([
          [dragged ? "by its graph" : "time of a step", units.time(answer.time_s), units.interval(answer.low_s, answer.high_s), answer.time_s],
          ["datasheet roofline", units.time(answer.roofline_s), `${units.percent(answer.roofline_s / answer.time_s)} of the prediction`, answer.roofline_s],
          ...(answer.money ? [["money", units.money(answer.money.usd), units.known(answer.money.usd) ? `a step; ${units.money(answer.money.usd_per_million_tokens)} per million tokens, at ${units.money(answer.money.usd_per_hour)} per GPU and hour` : answer.money.note, answer.money.usd]] : []),
          ["nodes of the graph", units.whole(answer.nodes), answer.in_range ? "all within what was measured" : "some outside what was measured", answer.nodes],
        ]),
        copies(head),
        make("h3", {}, "Timeline and critical path"),
        timeline("What runs when on each stream of one rank of each pipeline stage; the red line underneath marks the critical path, which alone makes the step longer. Chain: ops one after the other.", slices, hues, units.time),
        legend([...new Set(slices.map((one) => one.group))].map((one) => [one, hues[one] ?? 7])),
        table("What the critical path is made of", [{ name: "what", label: "group" }, { name: "seconds", label: "seconds", write: units.time }, { name: "share", label: "of the step", write: units.percent }], answer.critical.map((one) => ({ ...one, share: one.seconds / answer.time_s })))),
      section("By group of ops", make("p", { class: "quiet" }, "Added up over ranks and streams, whether they overlap or not. Given: times of no op or message, as posting messages and the end of a step; gemm: matrix products; prefill_attention: attention over whole sequences."),
        bars(answer.breakdown.slice(0, 12).map((one) => ({ label: one.group, parts: [[one.seconds, hues[one.group]]], words: units.time(one.seconds), title: `${units.percent(one.share)}, datasheet ${units.time(one.roofline_s)}` })), most)),
    ];
    if (answer.explained.length) {
      made.push(section("Why the longest ops take as long",
        make("p", { class: "quiet" }, "All executions on all ranks together, the longest first, and the price of one by itself, to which a step adds its effects: the roofline of the datasheet times the factor of each stage, and by what that is known."),
        table("The ops that take longest", [{ name: "op", label: "op", long: true }, { name: "times", label: "times", write: units.whole }, { name: "seconds", label: "together", write: units.time }, { name: "price", label: "price of one", long: true }], answer.explained)));
    }
    if (dragged) {
      const sums = answer.memory.map((stage) => HELD.reduce((sum, [name]) => sum + stage[name], 0));
      made.push(section("Memory of each stage",
        bars(answer.memory.map((stage, at) => ({ label: `stage ${at + 1}`, parts: HELD.map(([name, , hue]) => [stage[name], hue]), words: units.bytes(sums[at]), title: HELD.map(([name, label]) => `${label} ${units.bytes(stage[name])}`).join(", ") })), Math.max(...sums, answer.memory_bytes), answer.memory_bytes),
        legend(HELD.map(([, label, hue]) => [label, hue])),
        make("p", { class: "remark" }, `The red line is the device's ${units.bytes(answer.memory_bytes)}.`)));
    }
    made.push(section("Which number to improve",
      make("p", { class: "quiet" }, dragged ? "The strongest first. A bar to the left: more of it makes the step shorter. Numbers of the machine can be bought; those of its kernels are how near they come to it, of what was measured; those of the training software are what a step adds to an op alone, so that less is better. Drag a slider to see the step with a quarter to four times of a number." : "To the left: more of it makes the step shorter."),
      dragged ? result : null,
      drivers(dragged ? answer.elasticities.filter((one) => one.varied) : answer.elasticities, { of: "the time", more: dragged ? slider : () => [] }),
      dragged ? make("div", { class: "bar-of-buttons" }, make("button", { type: "button", onclick: reset }, "Reset all")) : null,
      dragged ? commands : null,
      dragged ? whatIf.node : null));
    made.push(section("Notes of the graph", notes(answer.notes)));
    if (dragged) {
      base = answer;
      if (form.values().knobs) whatIf.ask(form.values());
    }
    return made;
  }

  root.append(step.node, beside.node, inside.node, program.node);
  return {
    refused: (words) => program.refused(words),
    changed(values, name) {
      if (name === "knobs") {
        if (base && values.knobs) whatIf.ask(values);
        else for (const one of [result, commands]) one.replaceChildren();
        return;
      }
      const given = FILES.some((one) => values[one]);
      const asked = Object.fromEntries(Object.entries(values).filter(([one]) => one !== "knobs" && PROGRAM.includes(one) === given));
      step.node.hidden = given;
      if (given) {
        inside.node.hidden = true;
        beside.clear();
        program.ask(asked);
        return;
      }
      program.clear();
      base = null;
      step.ask(asked);
    },
  };
}
