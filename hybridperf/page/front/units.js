// Numbers in words: three digits and an SI prefix.

const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

export const GAP = "\u00a0"; // keeps a number and its unit on one line

export const NONE = "–";

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function digits(value) {
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
}

export function time(value) {
  if (!known(value)) return NONE;
  if (value === 0) return `0${GAP}s`;
  if (Math.abs(value) >= 1000) return `${digits(value)}${GAP}s`;
  const [scale, unit] = TIMES.find(([one]) => Math.abs(value) >= one * 0.9995) ?? TIMES.at(-1);
  return `${digits(value / scale)}${GAP}${unit}`;
}

export function quantity(value, unit) {
  if (!known(value)) return NONE;
  const [scale, prefix] = PREFIXES.find(([one]) => Math.abs(value) >= one * 0.9995) ?? PREFIXES.at(-1);
  return `${digits(value / scale)}${GAP}${prefix}${unit}`.trim();
}

export const bytes = (value) => quantity(value, "B");
export const count = (value) => (known(value) ? digits(value) : NONE);
export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : NONE);
export const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)}${GAP}%` : NONE);
export const money = (value) => (known(value) ? `$${digits(value)}` : NONE);
export const words = (value) => (value === null || value === undefined || value === "" ? NONE : ({ true: "yes", false: "no" })[value] ?? String(value));
export const interval = (low, high, write = time) =>
  known(low) && known(high) ? `90${GAP}%: ${write(low)} to ${write(high)}` : "no interval";
