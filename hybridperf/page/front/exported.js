// Questions whose answers stand in the file itself, in place of `ask.js`: no server, no network.

import { Stopped } from "./turns.js";

const told = (async () => {
  try {
    const packed = Uint8Array.from(atob(document.getElementById("told").textContent), (one) => one.charCodeAt(0));
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(text).text());
  } catch {
    throw new Error("This file was damaged or changed since it was written: make it again.");
  }
})();

export async function known() {
  return (await told).views;
}

export async function ask(view, question, values, tell = () => {}) {
  const some = (await told).answers[`${view} ${question}`];
  if (!some) throw new Stopped(""); // of the page of a server alone: nothing is shown
  const found = some.found[some.fields.map((name) => values[name] ?? "").join("\n")];
  if (!found) throw new Error("This file has no answer to that; `hybridperf page` has.");
  const [command, python, answer] = found;
  tell({ command, python });
  if (typeof answer === "string") throw new Error(answer);
  return { ...answer, files: {} };
}

export async function upload() {
  throw new Error("This file takes no others; `hybridperf page` does.");
}
