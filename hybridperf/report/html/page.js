"use strict";
// Tables sort by a click on a header; timelines are drawn from the numbers that stand beside them. Nothing is fetched.

function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      };
      const words = (row) => row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === null && y === null) return words(a).localeCompare(words(b), undefined, { numeric: true }) * (down ? -1 : 1);
        if (x === null || y === null) return x === null ? 1 : -1; // what has no number comes last either way
        return down ? y - x : x - y;
      });
      body.append(...rows);
      table.dispatchEvent(new Event("sorted"));
    });
  });
}

// the first rows, and a button for all of them
function folded(table) {
  const first = Number(table.dataset.first), rows = table.tBodies[0].rows, button = document.createElement("button");
  let all = false;
  const show = () => [...rows].forEach((row, at) => (row.hidden = !all && at >= first));
  button.type = "button";
  button.className = "more";
  const say = () => (button.textContent = all ? `only the first ${first}` : `all ${rows.length} rows`);
  button.addEventListener("click", () => {
    all = !all;
    show();
    say();
  });
  table.addEventListener("sorted", show);
  table.parentElement.after(button);
  show();
  say();
}

function inSeconds(value, digits = 3) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (Math.abs(value) >= scale * 0.9995) return `${Number((value / scale).toPrecision(digits))} ${unit}`;
  }
  return value === 0 ? "0 s" : `${Number((value / 1e-9).toPrecision(digits))} ns`;
}

function unpacked(track) {
  const n = track.gap.length;
  const start = new Float64Array(n), end = new Float64Array(n), marked = new Uint8Array(n), several = new Map();
  for (let i = 0, at = 0; i < n; i++) {
    at += track.gap[i];
    start[i] = at;
    at += track.length[i];
    end[i] = at;
  }
  for (const i of track.marked) marked[i] = 1;
  for (const [i, count, busy] of track.several) several.set(i, { count, busy });
  return { name: track.name, kind: track.kind, label: track.label, start, end, marked, several };
}

// first index whose value is above x, of values in order
function above(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

function timeline(root) {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const tracks = data.tracks.map((track) => unpacked(track));
  const canvas = root.querySelector("canvas"), pen = canvas.getContext("2d");
  const detail = root.querySelector(".detail"), only = root.querySelector(".only");
  const ROW = 24, BAR = 18, TOP = 24, LEAST = 200; // pixels, pixels, pixels, ticks across the whole width
  let from = 0, to = data.whole, width = 0, gutter = 0, kept = null, waiting = false, zoomed = false;
  root.querySelector(".controls").hidden = false;

  const colours = () => {
    const style = getComputedStyle(root), of = (name) => style.getPropertyValue(name).trim();
    return { kinds: data.kinds.map(([, colour]) => of(`--k${colour}`)), text: of("--text"), quiet: of("--quiet"), rule: of("--rule"),
      panel: of("--panel"), mark: of("--mark"), on: of("--on-colour"), page: of("--page") };
  };
  const place = (tick) => gutter + ((tick - from) / (to - from)) * (width - gutter);
  const later = () => {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        draw();
      });
    }
  };

  function clipped(text, room) {
    if (pen.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
      else high = middle - 1;
    }
    return low ? text.slice(0, low) + "…" : "";
  }

  function axis(hue) {
    const span = (to - from) * data.tick, rough = span / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
    const digits = Math.min(9, Math.max(3, 1 + Math.ceil(Math.log10((to * data.tick) / step))));
    pen.textAlign = "left";
    for (let k = Math.ceil((from * data.tick) / step); k * step <= to * data.tick; k++) {
      const x = place((k * step) / data.tick);
      pen.fillStyle = hue.rule;
      pen.fillRect(x, 0, 1, TOP + tracks.length * ROW);
      pen.fillStyle = hue.quiet;
      const said = inSeconds(k * step, digits);
      if (x + 4 + pen.measureText(said).width < width) pen.fillText(said, x + 4, 15);
    }
  }

  function slice(track, i, top, hue) {
    const x = Math.max(place(track.start[i]), gutter), end = Math.min(place(track.end[i]), width);
    const wide = Math.max(end - x, 0.6);
    const dim = only && only.checked && !track.marked[i];
    pen.globalAlpha = dim ? 0.15 : 1;
    pen.fillStyle = hue.kinds[track.kind[i]];
    pen.fillRect(x, top, wide, BAR);
    const several = track.several.get(i);
    if (several && wide > 3) {
      pen.save();
      pen.beginPath();
      pen.rect(x, top, wide, BAR);
      pen.clip();
      pen.strokeStyle = hue.page;
      pen.lineWidth = 1;
      pen.globalAlpha *= 0.55;
      pen.beginPath();
      for (let at = x - (x % 6) - BAR; at < x + wide; at += 6) {
        pen.moveTo(at, top + BAR);
        pen.lineTo(at + BAR, top);
      }
      pen.stroke();
      pen.restore();
    }
    if (track.marked[i] && !dim) {
      pen.fillStyle = hue.mark;
      pen.fillRect(x, top + BAR, wide, 3);
    }
    if (wide > 5) {
      pen.fillStyle = hue.page;
      pen.fillRect(x + wide - 1, top, 1, BAR);
    }
    if (wide > 26 && !dim) {
      pen.fillStyle = hue.on;
      const label = track.label[i] < 0 ? `${several.count} slices` : data.labels[track.label[i]];
      pen.fillText(clipped(label, wide - 8), x + 4, top + 13);
    }
    if (kept && kept.track === track && kept.i === i) {
      pen.strokeStyle = hue.text;
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, top + 1, Math.max(wide - 2, 1), BAR - 2);
    }
    pen.globalAlpha = 1;
  }

  function draw() {
    const dense = window.devicePixelRatio || 1, height = TOP + tracks.length * ROW + 4;
    width = root.querySelector(".canvas").clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    gutter = Math.round(Math.min(180, width * 0.34, 14 + Math.max(...tracks.map((track) => pen.measureText(track.name).width))));
    const hue = colours();
    pen.clearRect(0, 0, width, height);
    axis(hue);
    tracks.forEach((track, row) => {
      const top = TOP + row * ROW;
      let last = -1; // pixels that are covered: of slices thinner than one, the first is enough
      for (let i = above(track.end, from); i < track.start.length && track.start[i] < to; i++) {
        const right = place(track.end[i]);
        if (right - last < 0.3 && !track.marked[i]) continue;
        slice(track, i, top, hue);
        last = Math.max(last, right);
      }
      pen.fillStyle = hue.page;
      pen.fillRect(0, top - 2, gutter - 2, ROW);
      pen.fillStyle = hue.text;
      pen.textAlign = "left";
      pen.fillText(clipped(track.name, gutter - 12), 6, top + 13);
    });
    pen.fillStyle = hue.rule;
    pen.fillRect(gutter - 2, 0, 1, height);
    root.dataset.view = `${from} ${to}`; // for those who test the page
  }

  function view(start, length) {
    const span = Math.min(Math.max(length, LEAST), data.whole);
    from = Math.min(Math.max(start, 0), data.whole - span);
    to = from + span;
    zoomed = span < data.whole;
    later();
  }
  const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, (to - from) * factor);
  const move = (share) => view(from + share * (to - from), to - from);

  function found(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const track = tracks[Math.floor((y - TOP) / ROW)];
    const tick = from + ((x - gutter) / (width - gutter)) * (to - from), near = ((to - from) / (width - gutter)) * 3;
    if (!track || x < gutter) return { tick };
    for (let i = above(track.end, tick - near); i < track.start.length && track.start[i] <= tick + near; i++) {
      if (track.end[i] >= tick || track.start[i] >= tick - near) return { tick, track, i };
    }
    return { tick };
  }

  function words({ track, i }) {
    const start = track.start[i] * data.tick, long = (track.end[i] - track.start[i]) * data.tick, several = track.several.get(i);
    const name = track.label[i] < 0 ? "" : `${data.labels[track.label[i]]}: `;
    const what = several ? `${several.count} slices, busy for ${inSeconds(several.busy * data.tick)} of ${inSeconds(long)}` : inSeconds(long);
    const marked = track.marked[i] && data.marked ? `, ${data.marked}` : "";
    const kind = data.kinds[track.kind[i]][0];
    return `${name}${what}, from ${inSeconds(start, 6)} (${track.name}; ${several ? "mostly " : ""}${kind}${marked})`;
  }

  const usual = detail.textContent;
  let held = null, moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      if (Math.abs(event.clientX - held.x) > 3) moved = true;
      if (moved) {
        canvas.classList.add("moving");
        view(held.from - ((event.clientX - held.x) / (width - gutter)) * (to - from), to - from);
      }
    } else if (!kept) {
      const at = found(event);
      detail.textContent = at.track ? words(at) : usual;
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    held = null;
    canvas.classList.remove("moving");
    if (moved) return;
    const at = found(event);
    kept = at.track ? at : null;
    detail.textContent = kept ? words(kept) : usual;
    later();
  });
  canvas.addEventListener("pointercancel", () => {
    held = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("dblclick", (event) => zoom(0.25, found(event).tick));
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.004), found(event).tick);
    else if (zoomed && Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / width);
    else return; // the page scrolls
    event.preventDefault();
  }, { passive: false });
  const acts = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.4), right: () => move(0.4), all: () => view(0, data.whole) };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    acts[keys[event.key]]();
    event.preventDefault();
  });
  for (const button of root.querySelectorAll("button[data-do]")) button.addEventListener("click", () => acts[button.dataset.do]());
  if (only) only.addEventListener("change", later);
  new ResizeObserver(later).observe(root.querySelector(".canvas"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  draw();
}

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("table[data-first]").forEach(folded);
document.querySelectorAll(".timeline").forEach(timeline);
