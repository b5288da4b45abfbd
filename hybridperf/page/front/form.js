// Fields of a view: labels, sliders with their numbers, choices, files.

import { upload } from "./ask.js";
import { make } from "./parts.js";

// Values that a slider steps through: powers of two, or about sixty numbers of two digits.
function stops(field) {
  const found = [];
  if (field.scale === "powers") {
    for (let at = field.least; at <= field.most; at *= 2) found.push(at);
    return found;
  }
  if (field.least === 0) found.push(0);
  const start = Math.max(1, field.least);
  for (let at = 0; at <= 60; at += 1) {
    const value = start * (field.most / start) ** (at / 60);
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(value)) - 1);
    const rounded = Math.round(value / unit) * unit;
    if (rounded !== found.at(-1)) found.push(rounded);
  }
  return found;
}

const NARROW = 10; // letters of a choice that fit beside its label

function nearest(list, value) {
  const far = (one) => Math.abs(Math.log((one + 0.5) / (Number(value) + 0.5)));
  return list.reduce((best, one, at) => (far(one) < far(list[best]) ? at : best), 0);
}

export class Form {
  // `changed(values, name, done)`: done once a slider is let go or a text is left
  constructor(root, fields, suggested, changed) {
    this.root = root;
    this.fields = fields;
    this.inputs = {};
    this.files = {};
    this.sliders = {};
    this.configs = {}; // files of models, that count in place of a name
    this.changed = changed;
    const folds = {};
    root.replaceChildren();
    for (const field of fields) {
      const group = field.group ?? "main";
      const made = group === "hidden" ? null : this.#field(field, suggested);
      if (!made) continue;
      if (group === "main") root.append(made);
      else {
        folds[group] ??= make("details", { class: "fold" }, make("summary", {}, group === "more" ? "More" : "A program instead"));
        folds[group].append(made);
      }
    }
    root.append(...Object.values(folds));
    this.extra = {};
  }

  #field(field, suggested) {
    const id = `field-${field.name}`;
    const tell = (done) => this.changed(this.values(), field.name, done);
    const label = make("label", { for: id }, field.label, field.unit ? make("span", { class: "unit" }, ` (${field.unit})`) : null);
    let input;
    if (field.kind === "choice") {
      const options = field.choices.map((one) => make("option", { value: one }, one));
      if (field.default === undefined) options.unshift(make("option", { value: "" }, "usual"));
      input = make("select", { id, onchange: () => tell(true) }, ...options);
    } else if (field.kind === "file") {
      input = make("input", { id, type: "file", onchange: () => this.#file(field, input, tell) });
    } else if (field.kind === "whole" || field.kind === "number") {
      input = make("input", { id, type: "number", min: field.least, max: field.most, inputmode: "numeric", placeholder: field.default === undefined ? "usual" : undefined });
      input.addEventListener("input", () => { this.#slide(field); tell(false); });
      input.addEventListener("change", () => tell(true));
    } else {
      input = make("input", { id, type: "text", list: field.known ? `known-${field.known}` : undefined, autocomplete: "off", spellcheck: "false" });
      input.addEventListener("change", () => { this.#without(field); tell(true); });
      if (field.known) suggested(field.known);
    }
    this.inputs[field.name] = input;
    const wide = !["whole", "number", "choice"].includes(field.kind) || field.choices.some((one) => one.length > NARROW);
    const made = make("div", { class: wide ? "field wide" : "field" }, label, input);
    if (field.known === "models") {
      const config = make("input", { type: "file", accept: ".json,.toml", "aria-label": "or the model's config.json", onchange: () => this.#file(field, config, tell) });
      this.configs[field.name] = config;
      made.append(make("details", {}, make("summary", {}, "or its config.json"), config));
    }
    if (field.scale && field.default !== undefined) {
      const list = stops(field);
      const slider = make("input", { type: "range", min: 0, max: list.length - 1, step: 1, "aria-label": field.label });
      const moved = () => {
        input.value = list[slider.value];
        slider.setAttribute("aria-valuetext", `${input.value} ${field.unit ?? ""}`.trim());
      };
      slider.addEventListener("input", () => { moved(); tell(false); });
      slider.addEventListener("change", () => tell(true));
      this.sliders[field.name] = { slider, list };
      made.append(slider);
    }
    return made;
  }

  #slide(field) {
    const found = this.sliders[field.name];
    const { value } = this.inputs[field.name];
    if (!found || value === "") return;
    found.slider.value = nearest(found.list, value);
    found.slider.setAttribute("aria-valuetext", `${value} ${field.unit ?? ""}`.trim());
  }

  #without(field) {
    this.files[field.name] = "";
    if (this.configs[field.name]) this.configs[field.name].value = "";
  }

  async #file(field, input, tell) {
    this.files[field.name] = "";
    if (input.files.length) {
      try {
        this.files[field.name] = await upload(input.files[0]);
      } catch (error) {
        this.refused?.(error.message);
        return;
      }
    }
    tell(true);
  }

  // What is asked: by field, without those that are empty.
  values() {
    const found = {};
    for (const field of this.fields) {
      const value = field.kind === "file" || this.files[field.name] ? this.files[field.name] : this.inputs[field.name]?.value.trim() ?? this.extra[field.name];
      if (value !== undefined && value !== "") found[field.name] = value;
    }
    return found;
  }

  fill(values) {
    for (const field of this.fields) {
      const value = values[field.name] ?? (field.name in values ? "" : field.default ?? "");
      if (field.kind === "file" || String(value).startsWith("file:")) continue;
      const input = this.inputs[field.name];
      if (!input) this.extra[field.name] = String(value);
      else {
        input.value = value;
        if (field.kind === "choice" && input.selectedIndex < 0) input.selectedIndex = 0;
        this.#slide(field);
        const fold = input.closest("details.fold");
        if (fold && values[field.name] && String(value) !== String(field.default ?? "")) fold.open = true;
      }
    }
  }
}
