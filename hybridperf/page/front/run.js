// A whole run: days, goodput, money, energy, and where its time goes.

import { strip } from "./drivers.js";
import { bars, cards, copies, make, notes, section } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const WRITE = {
  days: ["days", units.count], goodput: ["goodput", units.percent], uptime: ["uptime", units.percent],
  failures: ["failures", (v) => (v < 100 ? v.toFixed(1) : units.count(v))], gpu_hours: ["GPU hours", units.count], usd: ["money", units.money],
  energy_j: ["energy", (v) => units.quantity(v / 3600, "Wh")],
};

const LOST = { useful: "useful steps", planned: "planned stops", detection: "until a failure is noticed and a node is there", restart: "starting again", redone: "work since the last checkpoint, done again", checkpoints: "writing checkpoints", evaluation: "evaluation", stalls: "stalls" };

const longer = (days) => (days >= 1 ? `${units.digits(days)} days` : `${units.digits(24 * days)} hours`);

function draw(answer, head) {
  const items = answer.run.filter((one) => one.expected !== null).map((one) => {
    const [label, write] = WRITE[one.what] ?? [one.what, units.count];
    return [label, write(one.expected), units.interval(one.low, one.high, write), one.expected];
  });
  const lost = Object.entries(answer.lost).sort((a, b) => b[1] - a[1]);
  return [
    cards(items),
    copies(head),
    section("How it is kept alive", cards([
      ["between checkpoints", units.time(answer.interval_s), "of useful time", answer.interval_s],
      ["spare nodes", units.whole(answer.spares), "that wait for a failure", answer.spares],
    ]), make("p", {}, answer.step)),
    section("Where the time goes", bars(lost.map(([name, share], at) => ({ label: LOST[name] ?? name, parts: [[share, name === "useful" ? 2 : 1]], words: units.percent(share) })), 1)),
    section("What was believed", notes(answer.notes)),
  ];
}

export function show(root) {
  let first = {}; // results by name
  const worth = strip("run", {
    days: { of: "the days", worth: (share) => longer(share * first.days) },
    usd: { of: "the money", worth: (share) => units.money(share * first.usd) },
  }, () => "Of the numbers of the run, its failures and prices, and of the machine through the time of its step.");
  const run = new Asked("run", "run", (answer, head, values) => {
    first = Object.fromEntries(answer.run.map((one) => [one.what, one.expected]));
    worth.ask(values);
    return draw(answer, head);
  }, { refused: () => worth.clear(), wait: 30, stop: true, say: (answer) => `${units.digits(answer.run[0].expected)} days` });
  root.append(run.node, worth.node);
  return {
    refused: (words) => run.refused(words),
    changed({ interval_s: interval, mtbf_h: mtbf, ...values }) {
      run.ask({ ...values, interval: interval ? `${interval}s` : "", mtbf: mtbf ? `gpu=${mtbf}h` : "" });
    },
  };
}
