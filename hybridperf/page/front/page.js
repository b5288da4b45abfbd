// The page: views, their fields, and the state in the address.

import { ask, known } from "./ask.js";
import { Form } from "./form.js";
import * as grid from "./grid_view.js";
import { make } from "./parts.js";
import * as layouts from "./layouts.js";
import * as machine from "./machine.js";
import * as run from "./run.js";
import * as serving from "./serving.js";
import * as step from "./step.js";
import * as tables from "./tables.js";
import * as trace from "./trace.js";

const SHOWS = { step, layouts, grid, serving, run, machine, trace, tables };
const NAMES = { models: (one) => Object.keys(one.models), devices: (one) => one.devices.map((d) => d.id), systems: (one) => one.systems.map((s) => s.id) };
const place = (id) => document.getElementById(id);
const suggestions = {};
let views = {};
let shown = null;

// Names that fields offer; asked for once, behind the first answer.
function suggested(what) {
  suggestions[what] ??= setTimeout(async () => {
    const list = make("datalist", { id: `known-${what}` });
    const answer = await ask("known", what, {}).catch(() => null);
    if (answer) list.append(...NAMES[what](answer).map((one) => make("option", { value: one })));
    document.body.append(list);
  }, 1500);
}

function state() {
  const [view, query] = location.hash.slice(1).split("?");
  const values = Object.fromEntries(new URLSearchParams(query ?? ""));
  return [views[view]?.title ? view : "step", values];
}

function remember(view, values) {
  const kept = new URLSearchParams();
  for (const field of views[view].fields) {
    const value = values[field.name] ?? "";
    if (!String(value).startsWith("file:") && String(value) !== String(field.default ?? "")) kept.set(field.name, value);
  }
  const query = kept.toString();
  history.replaceState(null, "", `#${view}${query ? `?${query}` : ""}`);
}

function open() {
  const [view, values] = state();
  const { title, lead, fields } = views[view];
  document.title = `${title} – hybridperf`;
  place("title").textContent = title;
  place("lead").textContent = lead;
  for (const link of place("views").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const form = new Form(place("fields"), fields, suggested, (given, name, done) => {
    remember(view, given);
    shown.changed(given, name, done);
  });
  form.fill(values);
  const set = (changes) => {
    form.fill({ ...form.values(), ...changes });
    remember(view, form.values());
    shown.changed(form.values(), Object.keys(changes)[0], true);
  };
  place("answer").replaceChildren();
  shown = SHOWS[view].show(place("answer"), { form, set, asks: Object.keys(views[view].questions) });
  form.refused = (words) => shown.refused(words);
  shown.changed(form.values(), "", true);
}

known().then((found) => {
  views = found;
  place("views").append(...Object.keys(SHOWS).filter((view) => views[view]).map((view) => make("a", { href: `#${view}` }, views[view].title)));
  place("fields").addEventListener("submit", (event) => event.preventDefault());
  place("skip").addEventListener("click", (event) => { event.preventDefault(); place("answer").focus(); });
  addEventListener("hashchange", open);
  open();
}).catch((error) => { place("lead").textContent = error.message; });
