// Deployments of a model under limits of latency: the front with its uncertainty, and the best one.

import { scatter } from "./draw.js";
import { strip } from "./drivers.js";
import { cards, copies, make, section, table } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const ROWS = 40;
const NAMES = ["tp", "pp", "attention_dp", "expert_ep"];

function deployment(row) {
  const degrees = NAMES.filter((one) => row[one] > 1).map((one) => `${one.replaceAll("_", " ")} ${row[one]}`);
  const prefill = row.prefill_replicas ? [`prompts on ${row.prefill_replicas} × tp ${row.prefill_tp}`] : [];
  return [`${row.replicas} × ${degrees.join(", ") || "one GPU"}`, ...prefill, row.mode, row.quant, `${row.sequences} sequences`, ...(row.chunk > 0 ? [`chunks of ${units.whole(row.chunk)} tokens`] : [])].join(", ");
}

const COLUMNS = [
  { name: "tokens_per_s_gpu", label: "tokens/s and GPU", write: units.count },
  { name: "ttft_s", label: "first token", write: units.time },
  { name: "tpot_s", label: "per token", write: units.time },
  { name: "memory_bytes", label: "memory", write: units.bytes },
  { name: "usd_per_million", label: "$ per million tokens", write: (v) => (units.known(v) ? `$${v.toFixed(2)}` : units.NONE) },
  { name: "joules_per_million", label: "energy per million", write: (v) => units.quantity(v, "J") },
];

// How near the deployment comes to its limits, and what its words mean.
function nearest(row, { ttft_s: first, tpot_s: each }) {
  const near = [["time to first token", row.ttft_s, first], ["time per output token", row.tpot_s, each]].filter(([, , limit]) => units.known(limit)).sort((a, b) => b[1] / b[2] - a[1] / a[2]);
  const [what, value, limit] = near[0] ?? [];
  return what && row.within ? `The limit that holds it back is the ${what}: ${units.time(value)} of ${units.time(limit)}. ` : "";
}

function draw(answer, head, values) {
  const rows = answer.deployments;
  const best = rows[0];
  const words = (row) => `${deployment(row)}: ${units.count(row.tokens_per_s_gpu)} tokens/s and GPU, first token ${units.time(row.ttft_s)}, ${units.time(row.tpot_s)} per token`;
  const points = rows.map((row, at) => ({ x: row.tokens_per_s_user, y: row.tokens_per_s_gpu, low: row.front ? row.tokens_per_s_gpu_low : 0, high: row.front ? row.tokens_per_s_gpu_high : 0, hue: row.within ? 2 : 7, mark: at === 0, words: words(row) }));
  const line = points.filter((_, at) => rows[at].front);
  return [
    cards([
      ["tokens per second and GPU", units.count(best.tokens_per_s_gpu), units.interval(best.tokens_per_s_gpu_low, best.tokens_per_s_gpu_high, units.count), best.tokens_per_s_gpu],
      ["time to first token", units.time(best.ttft_s), units.interval(best.ttft_s_low, best.ttft_s_high), best.ttft_s],
      ["time per output token", units.time(best.tpot_s), units.interval(best.tpot_s_low, best.tpot_s_high), best.tpot_s],
      ["money", units.known(best.usd_per_million) ? `$${best.usd_per_million.toFixed(2)}` : units.NONE, "per million output tokens", best.usd_per_million],
    ]),
    make("p", best.within ? {} : { class: "error" }, `${best.within ? "The best deployment" : "No deployment is within the limits; the nearest"}: ${deployment(best)}. ${nearest(best, limits(values.sla))}`),
    make("p", { class: "remark" }, "3 × tp 2: three replicas of the model, each over two GPUs by tensor parallelism; prompts on: GPUs of their own read prompts; chunks: how many tokens of prompts a step takes in."),
    copies(head),
    section("All deployments",
      scatter("Each point is a deployment; green ones are within the limits, the circle is the best. The line is the front, upright lines are its 90 % intervals.", points, { name: "tokens per second of a user", log: true }, { name: "tokens per second and GPU", log: true }, [line]),
      table("The best deployments", [{ name: "d", label: "deployment", long: true, words: true, write: (_, row) => deployment(row) }, ...COLUMNS, { name: "within", label: "within limits", words: true, write: (v) => (v ? "yes" : "no") }], rows.slice(0, ROWS))),
  ];
}

function limits(sla = "") {
  const found = Object.fromEntries(sla.split(",").filter(Boolean).map((one) => one.split("=")));
  return { ttft_s: parseFloat(found.ttft) / 1e3, tpot_s: parseFloat(found.tpot) / 1e3 };
}

export function show(root) {
  const worth = strip("serving", { tokens_per_s: { of: "the tokens per second", less: false }, ttft_s: { of: "the time to first token" }, tpot_s: { of: "the time per output token" } }, (found) => `Of the numbers of the machine, the framework and the load, for the best deployment whose engines do all: ${deployment(found.elasticities_of[0])}.`);
  const serve = new Asked("serving", "serve", (answer, head, values) => {
    if (answer.deployments.some((one) => one.mode === "aggregated")) worth.ask(values);
    else worth.clear();
    return draw(answer, head, values);
  }, { refused: () => worth.clear(), wait: 30, stop: true, say: (answer) => `${units.count(answer.deployments[0].tokens_per_s_gpu)} tokens per second and GPU` });
  root.append(serve.node, worth.node);
  return {
    refused: (words) => serve.refused(words),
    changed({ ttft_ms: ttft, tpot_ms: tpot, ...values }) {
      const sla = [ttft && `ttft=${ttft}ms`, tpot && `tpot=${tpot}ms`].filter(Boolean).join(",");
      serve.ask({ ...values, sla });
    },
  };
}
