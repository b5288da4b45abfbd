// Parts of a page, made of elements: text is never read as HTML.

import { NONE } from "./units.js";

export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "circle", "path", "text", "title"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Key figures: [name, words, remark, number], whose number stays readable for programs.
export function cards(items) {
  const made = items.map(([name, words, remark, number]) =>
    make("div", { class: "card" },
      make("dt", {}, name),
      make("dd", {}, make("span", { class: words.length > 14 ? "value long" : "value", "data-name": name, "data-value": number }, words)),
      remark ? make("dd", { class: "remark" }, remark) : null));
  return make("dl", { class: "cards" }, ...made);
}

// A table that scrolls by itself, with its rows as a file. Columns: { name, label, write, number,
// long }; more.every: the rows of the file where not all of them are shown.
export function table(caption, columns, rows, more = {}) {
  const kind = (column) => (column.write && !column.words ? "number" : column.long ? "long" : undefined);
  const head = make("tr", {}, ...columns.map((one) => make("th", { scope: "col", class: kind(one) }, one.label)));
  const body = rows.map((row, at) => {
    const cells = columns.map((one) => {
      const value = row[one.name];
      const said = one.write ? one.write(value, row, at) : value ?? NONE;
      return make("td", { class: kind(one), "data-value": typeof value === "number" ? value : undefined }, said instanceof Node ? said : String(said));
    });
    return make("tr", { class: more.chosen?.(row, at) ? "chosen" : undefined }, ...cells);
  });
  const made = make("table", { "data-name": more.name }, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made);
  const every = more.every ?? rows;
  const save = make("button", { type: "button", class: "save", "aria-label": `CSV: ${caption}`, onclick: () => saved(`${more.name ?? "table"}.csv`, csv(every)) }, "CSV");
  return make("div", {}, scroll, every.length ? save : null);
}

// Rows of an answer as RFC 4180 has them: every number whole, in SI units; lists and gaps are left out.
export function csv(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => ["number", "string", "boolean"].includes(typeof row[name]))))];
  const cell = (value) => (/[",\r\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

function saved(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The same table, whose rows a click on a header sorts: by numbers where there are, else by words.
export function sortable(node) {
  const body = node.querySelector("tbody");
  const heads = [...node.querySelectorAll("th")];
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const of = (row) => row.cells[column];
      const order = (a, b) => {
        const [x, y] = [of(a).dataset.value, of(b).dataset.value]; // what has no number comes last either way
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || (down ? -1 : 1) * of(a).textContent.localeCompare(of(b).textContent);
        return (down ? -1 : 1) * (Number(x) - Number(y));
      };
      body.append(...[...body.rows].sort(order));
    };
    head.replaceChildren(make("button", { type: "button", class: "sort", onclick: sort }, ...head.childNodes));
  });
  return node;
}

// Horizontal bars. Rows: { label, parts: [[amount, hue]], words, title }; `most` fills the width.
export function bars(rows, most, limit = null) {
  return make("div", { class: "bars" }, ...rows.map((row) => {
    const track = make("div", { class: "track", title: row.title });
    for (const [amount, hue] of row.parts) {
      const part = make("div", { class: `part k${hue}` });
      part.style.width = `${(100 * Math.max(0, amount)) / (most || 1)}%`;
      track.append(part);
    }
    if (limit) {
      const line = make("div", { class: "limit" });
      line.style.left = `${Math.min(99.5, (100 * limit) / most)}%`;
      track.append(line);
    }
    return make("div", { class: "row" }, make("span", {}, row.label), track, make("span", { class: "number" }, row.words));
  }));
}

export function legend(items) {
  return make("ul", { class: "legend" }, ...items.map(([name, hue]) => make("li", {}, make("span", { class: `k${hue}` }), name)));
}

export function notes(text) {
  const items = (Array.isArray(text) ? text : text.split("; ")).filter(Boolean);
  return make("ul", { class: "notes" }, ...items.map((one) => make("li", {}, one)));
}

export function section(title, ...children) {
  return make("section", { "aria-label": title }, make("h2", {}, title), ...children);
}

export function folded(title, ...children) {
  return make("details", {}, make("summary", {}, title), ...children);
}

async function copied(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying was refused";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

// Buttons that copy what was asked, and the text itself behind a line that opens.
export function copies(head) {
  const button = (label, text) => {
    const made = make("button", { type: "button", onclick: () => copied(made, text()) }, label);
    return made;
  };
  return make("div", {},
    make("div", { class: "bar-of-buttons" },
      button("Copy as command", () => head.command),
      button("Copy as Python", () => head.python),
      button("Copy link", () => location.href)),
    folded("The command", make("pre", { class: "command", tabindex: 0, "aria-label": "The command" }, head.command)));
}
