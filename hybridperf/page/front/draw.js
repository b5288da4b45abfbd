// Figures in SVG, as wide as their place and drawn again when that changes.

import { make } from "./parts.js";
import { digits } from "./units.js";

const MARGIN = { left: 66, right: 14, top: 8, bottom: 40 };

// A figure that `draw(width)` fills; words say for those who do not see it what it shows.
export function figure(words, draw, ...after) {
  const place = make("div", {});
  const made = make("figure", {}, place, make("figcaption", {}, words), ...after);
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(place.clientWidth);
    if (now && now !== width) {
      width = now;
      const svg = draw(width);
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", words);
      place.replaceChildren(svg);
    }
  }).observe(place);
  return made;
}

function ticks(low, high, log, most) {
  if (log && high / low > 4) {
    for (const kept of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 5, 7]]) {
      const inside = [];
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) for (const one of kept) inside.push(one * 10 ** power);
      const found = inside.filter((one) => one >= low * 0.999 && one <= high * 1.001);
      if (found.length > Math.min(3, most / 2)) return found;
    }
  }
  const raw = (high - low) / most || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= raw);
  const linear = [];
  for (let at = Math.ceil(low / step) * step; at <= high * 1.0001; at += step) linear.push(at);
  return linear;
}

function scale(values, log, from, to) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) [low, high] = low === high ? [low / 1.5, high * 1.5] : [low / 1.08, high * 1.08];
  else {
    const gap = (high - low || Math.abs(high) || 1) * 0.05;
    [low, high] = [low >= 0 ? Math.max(0, low - gap) : low - gap, high + gap];
  }
  const of = log ? Math.log : (one) => one;
  const place = (value) => from + ((to - from) * (of(value) - of(low))) / (of(high) - of(low));
  return { place, low, high, log };
}

function axes(svg, x, y, xs, ys, width, height) {
  for (const at of ticks(xs.low, xs.high, xs.log, Math.max(2, width / 110))) {
    const place = xs.place(at);
    svg.append(make("line", { class: "axis", x1: place, x2: place, y1: MARGIN.top, y2: height - MARGIN.bottom }),
      make("text", { class: "quiet", x: place, y: height - MARGIN.bottom + 15, "text-anchor": place > width - 34 ? "end" : "middle" }, x.write?.(at) ?? digits(at)));
  }
  for (const at of ticks(ys.low, ys.high, ys.log, 5)) {
    const place = ys.place(at);
    svg.append(make("line", { class: "axis", y1: place, y2: place, x1: MARGIN.left, x2: width - MARGIN.right }),
      make("text", { class: "quiet", x: MARGIN.left - 6, y: place + 4, "text-anchor": "end" }, y.write?.(at) ?? digits(at)));
  }
  svg.append(make("text", { x: (MARGIN.left + width) / 2, y: height - 6, "text-anchor": "middle" }, x.name));
}

// Points { x, y, hue, words, low, high, mark, pick } over two axes { name, log, write }; lines
// join points in order of x. The y axis's name stands above.
export function scatter(words, points, x, y, lines = [], height = 300) {
  const good = points.filter((one) => [[one.x, x], [one.y, y]].every(([v, axis]) => Number.isFinite(v) && (!axis.log || v > 0)));
  const left = points.length - good.length;
  const title = `${y.name[0].toUpperCase()}${y.name.slice(1)} over ${x.name}.`;
  const caption = `${title} ${words}${left ? ` ${left} without a place are left out.` : ""}`;
  return figure(caption, (width) => {
    const svg = make("svg", { width, height });
    if (!good.length) return svg;
    const xs = scale(good.map((one) => one.x), x.log, MARGIN.left, width - MARGIN.right);
    const inside = good.flatMap((one) => [one.y, ...(one.low > 0 ? [one.low, one.high] : [])]);
    const ys = scale(inside, y.log, height - MARGIN.bottom, MARGIN.top);
    axes(svg, x, y, xs, ys, width, height);
    const clip = (one) => Math.min(height - MARGIN.bottom, Math.max(MARGIN.top, ys.place(one)));
    for (const line of lines) {
      const kept = line.filter((one) => good.includes(one)).sort((a, b) => a.x - b.x);
      if (kept.length > 1) svg.append(make("path", { class: `line${line.hue === undefined ? "" : ` k${line.hue}`}`, d: `M${kept.map((one) => `${xs.place(one.x)},${ys.place(one.y)}`).join("L")}` }));
    }
    for (const one of good) {
      const [cx, cy] = [xs.place(one.x), ys.place(one.y)];
      if (one.low > 0 && one.high > 0) svg.append(make("line", { class: "whisker", x1: cx, x2: cx, y1: clip(one.low), y2: clip(one.high) }));
      svg.append(make("circle", { class: `k${one.hue ?? 0} point`, cx, cy, r: one.size ?? 4, onclick: one.pick }, make("title", {}, one.words)));
      if (one.mark) svg.append(make("circle", { class: "mark", cx, cy, r: 8 }, make("title", {}, one.words)));
    }
    return svg;
  });
}

// One line with the band from low to high, the value and a reference.
export function band(words, value, low, high, write) {
  return figure(words, (width) => {
    const svg = make("svg", { width, height: 44 });
    const xs = scale([0, value, high ?? value], false, 8, width - 60);
    svg.append(make("line", { class: "axis", x1: 8, x2: width - 8, y1: 16, y2: 16 }));
    if (low !== null) svg.append(make("rect", { class: "band", x: xs.place(low), width: Math.max(1, xs.place(high) - xs.place(low)), y: 7, height: 18 }));
    svg.append(make("circle", { class: "k0", cx: xs.place(value), cy: 16, r: 6 }));
    const said = low === null ? [[value, "middle"]] : [[low, "end"], [high, "start"]];
    svg.append(make("text", { class: "quiet", x: 8, y: 40 }, "0"));
    for (const [at, anchor] of said) svg.append(make("text", { class: "quiet", x: xs.place(at), y: 40, "text-anchor": anchor }, write(at)));
    return svg;
  });
}

// Slices { track, start_s, end_s, label, group, critical, members } on one clock.
export function timeline(words, slices, hues, write) {
  const tracks = [...new Set(slices.map((one) => one.track))];
  const end = slices.reduce((last, one) => Math.max(last, one.end_s), 0);
  const row = 22;
  let [from, until] = [0, end]; // what is seen
  const draw = (width) => {
    const left = Math.min(8 + 6.6 * Math.max(...tracks.map((one) => one.length)), width * 0.3);
    const height = tracks.length * row + 26;
    const svg = make("svg", { width, height });
    const place = (at) => left + ((width - left - 8) * (at - from)) / (until - from);
    const inside = (at) => Math.min(width - 8, Math.max(left, place(at)));
    const see = (a, b) => {
      [from, until] = [Math.max(0, a), Math.min(end, b)];
      const again = draw(width);
      for (const name of ["role", "aria-label"]) again.setAttribute(name, svg.getAttribute(name));
      svg.replaceWith(again);
    };
    const at = (event) => from + ((event.offsetX - left) / (width - left - 8)) * (until - from);
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const times = event.deltaY > 0 ? 1.5 : 1 / 1.5;
      see(at(event) - (at(event) - from) * times, at(event) + (until - at(event)) * times);
    });
    svg.addEventListener("dblclick", () => see(0, end));
    svg.addEventListener("pointerdown", (down) => {
      const start = at(down);
      addEventListener("pointerup", (up) => {
        const moved = start - (from + ((up.clientX - svg.getBoundingClientRect().left - left) / (width - left - 8)) * (until - from));
        const kept = Math.min(Math.max(moved, -from), end - until);
        if (Math.abs(kept) > 0.005 * (until - from)) see(from + kept, until + kept);
      }, { once: true });
    });
    tracks.forEach((track, number) => {
      const most = Math.floor(left / 6.6);
      svg.append(make("text", { x: 0, y: number * row + 15 }, track.length > most ? `${track.slice(0, most - 1)}…` : track, make("title", {}, track)));
    });
    for (const one of ticks(from, until, false, Math.max(2, (width - left) / 110))) {
      svg.append(make("line", { class: "axis", x1: place(one), x2: place(one), y1: 0, y2: height - 18 }),
        make("text", { class: "quiet", x: place(one), y: height - 4, "text-anchor": place(one) > width - 40 ? "end" : "middle" }, write(one)));
    }
    for (const one of slices) {
      if (one.end_s < from || one.start_s > until) continue;
      const y = tracks.indexOf(one.track) * row + 2;
      const [x, wide] = [inside(one.start_s), Math.max(0.4, inside(one.end_s) - inside(one.start_s))];
      const said = `${one.label || `${one.members} slices`} (${one.group}): ${write(one.end_s - one.start_s)} from ${write(one.start_s)}${one.critical ? ", on the critical path" : ""}`;
      svg.append(make("rect", { class: `k${hues[one.group] ?? 7}`, x, y, width: wide, height: one.critical ? row - 8 : row - 4 }, make("title", {}, said)));
      if (one.critical) svg.append(make("line", { class: "critical", x1: x, x2: x + wide, y1: y + row - 6, y2: y + row - 6 }));
    }
    return svg;
  };
  return figure(words, draw);
}
