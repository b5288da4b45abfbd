// Numbers of a machine in words: what one is, whose it is, and its value with unit.

import * as units from "./units.js";

const rate = (value) => units.quantity(value, "B/s");
const times = (value) => `×${units.digits(value)}`;
const MACHINE = "the machine";
const KERNELS = "its kernels";
const STEP = "the training software";

const OWN = {
  peak_flops_scale: ["peak FLOP/s of the accelerator", times],
  memory_bytes_per_s: ["memory bandwidth", rate],
  intra_bytes_per_s: ["bandwidth of a GPU to others of its node", rate],
  rank_bytes_per_s: ["bandwidth of a GPU to other nodes", rate],
  node_bytes_per_s: ["bandwidth of a node to other nodes", rate],
  host_link_bytes_per_s: ["bandwidth of a GPU to its host", rate],
  link_latency_s: ["latency of messages", units.time],
};

// of a group of ops, as in gemm__floor_s
const GROUP = {
  floor_s: ["least time of an op", units.time],
  compute_efficiency: ["share of peak FLOP/s", units.percent],
  memory_efficiency: ["share of memory bandwidth", units.percent],
  transcendental_flops: ["FLOPs of an exp or a log", units.count],
  strided_factor: ["cost of strided reads", times],
  step_s: ["time of a serial step", units.time],
  smoothing: ["compute and memory time add up (0: the longer counts, 1: their sum)", units.count],
  level_bytes: ["size of the cache", units.bytes],
  level_speedup: ["bandwidth over the datasheet's of the memory", times],
  level_capacity: ["usable share of the cache", units.percent],
  line_s: ["time of a cache line", units.time],
};

// What a step adds to an op or a message alone; those without a unit are factors on its time.
const EFFECTS = {
  gemm: "GEMM slowdown inside a step",
  experts: "expert GEMM slowdown inside a step",
  attention: "attention slowdown inside a step",
  memory: "elementwise, norm and softmax slowdown inside a step",
  unlike_gpus: "scatter of the clocks of GPUs of one kind",
  launch_s: "host time between two launches",
  backward_launch: "launch of the backward pass over one of the forward",
  collective_launch_s: "host time to issue a message",
  exposed_kernel_s: "gap between two kernels",
  tp: "tensor-parallel communication slowdown",
  tp_arrival_s: "wait for the last GPU of a tensor-parallel message",
  tp_across: "tensor-parallel communication slowdown across nodes",
  exchange: "context- and expert-parallel communication slowdown",
  gather: "weight all-gather slowdown",
  gather_shown: "share of such gathers that computation does not hide",
  p2p: "pipeline send/receive slowdown",
  slot_s: "posting the messages of a micro-batch",
  input_s: "preparing a micro-batch",
  reduction: "gradient reduction slowdown",
  overlap_shown: "slow-down of kernels beside messages",
  optimizer: "optimizer slowdown inside a step",
  fixed_s: "host work once a step",
};

// of a run, a server under load and prices, by the name without its place
const OTHERS = {
  step_s: ["time of a step", "the run"],
  steps: ["steps", "the run"],
  state_bytes: ["bytes of a checkpoint", "the run"],
  interval_s: ["time between checkpoints", "the run"],
  spares: ["spare nodes", "the run"],
  evaluation_share: ["share of the time that evaluates", "the run"],
  stalls_per_day: ["stalls a day", "the run"],
  stall_s: ["time of a stall", "the run"],
  warmup_s: ["time until the first step", "the run"],
  clients: ["clients", "the load"],
  prompt: ["tokens of a prompt", "the load"],
  output: ["tokens of an answer", "the load"],
  cached: ["tokens of a prompt in the prefix cache", "the load"],
  slots: ["sequences at once", "the server"],
  chunk: ["tokens of a step", "the server"],
};
const SERVED = {
  kernels: "time of kernels in a step over alone",
  gap_s: "gap between two kernels",
  step_s: "host time of a step",
  sequence_s: "host time of a token",
  prefill: "time of prompts over their kernels'",
  waited_steps: "steps that a first token waits",
  first_token_s: "host time of a first token",
  launch_s: "host time between two launches",
};
const PLACES = {
  mtbf_s: [(name) => `time between failures of a ${name}`, "the run"],
  beliefs: [(name) => (name === "step_longer" ? "steps of a run over a benchmark's" : name.replace(/_s$/, "").replaceAll("_", " ")), "what is believed of the run"],
  economy: [(name) => name.replace(/_w$/, " power").replace(/_per_/g, " per ").replaceAll("_", " "), "prices and power"],
  load: [(name) => OTHERS[name]?.[0] ?? name, "the load"],
  effects: [(name) => SERVED[name] ?? name.replaceAll("_", " "), "the serving software"],
};

function number(name, value) {
  if (name.endsWith("_s") || name === "gpu" || name === "node" || name === "job") return units.time(value);
  if (name.endsWith("_bytes")) return units.bytes(value);
  if (name.endsWith("_w")) return units.quantity(value, "W");
  if (name.startsWith("usd")) return units.money(value);
  return units.count(value);
}

// { label, whose, value } of a row of elasticities
export function described({ knob: whole, value }) {
  const knob = whole.replace(/^(groups|levels|links|effects__(?=launch_s$))__/, "");
  const [group, own] = knob.split("__");
  if (PLACES[group] && own) return { label: PLACES[group][0](own), whose: PLACES[group][1], value: number(group === "mtbf_s" ? group : own, value) };
  if (OTHERS[knob]) return { label: OTHERS[knob][0], whose: OTHERS[knob][1], value: number(knob, value) };
  if (OWN[knob]) return { label: OWN[knob][0], whose: MACHINE, value: OWN[knob][1](value) };
  if (own) {
    const [label, write] = GROUP[own] ?? [own.replaceAll("_", " "), units.count];
    const cache = group === "memory" || own.startsWith("level_") || own === "line_s";
    return { label: `${group.replaceAll("_", " ")}: ${label}`, whose: cache ? MACHINE : KERNELS, value: write(value) };
  }
  const write = knob.endsWith("_s") ? units.time : times;
  return { label: EFFECTS[knob] ?? knob.replaceAll("_", " "), whose: STEP, value: write(value) };
}
