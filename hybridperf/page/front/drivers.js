// What one percent more of each number is worth: bars to the left and right of nothing.

import { described } from "./knobs.js";
import { copies, make, section } from "./parts.js";
import * as units from "./units.js";
import { Asked } from "./view.js";

const MOST = 14; // numbers that are shown
const ALL = "everything";

// The strongest of some elasticities, { knob, value, elasticity }, of what `of` says. `less`: whether
// less of it is better, `worth(share)`: words for that share more of it, `more(row)`: what stands
// behind a bar.
export function drivers(rows, { of, less = true, worth = null, more = () => [] }) {
  const kept = rows.slice(0, MOST);
  const most = Math.max(...kept.map((one) => Math.abs(one.elasticity)));
  return make("div", { class: "bars" }, ...kept.map((one) => {
    const part = make("div", { class: `part k${one.elasticity < 0 === less ? 2 : 1}` });
    const share = (50 * Math.abs(one.elasticity)) / most;
    part.style.width = `${share}%`;
    part.style.marginLeft = one.elasticity < 0 ? `${50 - share}%` : "50%";
    const { label, whose, value } = described(one);
    const sign = one.elasticity > 0 ? "+" : "\u2212";
    const size = Math.abs(one.elasticity);
    const amount = worth ? ` (${sign}${worth(size / 100)})` : "";
    const effect = `1${units.GAP}% more: ${sign}${units.digits(size)}${units.GAP}% of ${of}${amount}`;
    const name = make("span", { title: one.knob }, label, make("span", { class: "remark" }, `of ${whose}, now ${value}; ${effect}`));
    const behind = more(one);
    return make("div", { class: behind.length ? "row knob" : "row driver", "data-driver": one.knob, "data-value": one.elasticity }, name, make("div", { class: "track signed" }, part), ...behind);
  }));
}

// A strip of them for a view, asked for once the view's own answer is there. `results`: by the name
// of what elasticities are of, what `drivers` takes beside them; `words(answer)`: what it is of.
export function strip(view, results, words) {
  const names = Object.keys(results);
  const menu = make("select", { "aria-label": "Worth by", onchange: () => redraw() }, ...names.map((name) => make("option", { value: name }, `of ${results[name].of}`)));
  const owners = make("select", { "aria-label": "Whose numbers", onchange: () => redraw() });
  const bars = make("div", {});
  let answer = null;

  function redraw() {
    const name = menu.value;
    const given = results[name];
    const rows = answer.elasticities.filter((one) => one.result === name && (owners.value === ALL || described(one).whose === owners.value));
    bars.replaceChildren(drivers(rows, { ...given, worth: given.worth && ((share) => given.worth(share, answer)) }));
  }

  const asked = new Asked(view, "drives", (found, head) => {
    answer = found;
    const there = names.filter((name) => found.elasticities.some((one) => one.result === name));
    if (!there.includes(menu.value)) [menu.value] = there;
    for (const one of menu.options) one.hidden = one.disabled = !there.includes(one.value);
    const before = owners.value;
    owners.replaceChildren(...[ALL, ...new Set(found.elasticities.map((one) => described(one).whose))].map((one) => make("option", { value: one }, `numbers of ${one}`)));
    owners.value = [...owners.options].some((one) => one.value === before) ? before : ALL;
    redraw();
    return section("What one percent is worth",
      make("p", { class: "quiet" }, `${words(found)} The strongest first; a green bar: more of it is better.`),
      make("div", { class: "bar-of-buttons" }, there.length > 1 ? menu : null, owners), bars, copies(head));
  }, { wait: 700, stop: true });
  return asked;
}
