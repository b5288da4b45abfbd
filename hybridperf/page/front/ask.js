// Questions to the server: an answer comes as lines, progress first.

import { Stopped } from "./turns.js";

// The views, as `views.toml` has them.
export async function known() {
  return (await fetch("views.json")).json();
}

// The last line's answer; `told` hears of the command and of progress.
export async function ask(view, question, values, told = () => {}, signal = undefined) {
  let response;
  try {
    response = await fetch("ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ view, question, values }),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw new Stopped("Stopped.");
    throw new Error("The server does not answer: start `hybridperf page` again.");
  }
  if (!response.ok) throw new Error(await response.text());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let answer = null;
  let files = {};
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw signal?.aborted ? new Stopped("Stopped.") : new Error("The server has ended.");
    }
    if (part.done) break;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const said = JSON.parse(line);
      if (said.error) throw new Error(said.error);
      if (said.answer) [answer, files] = [said.answer, said.files ?? {}];
      else told(said);
    }
  }
  if (!answer) throw new Error("The answer broke off; ask again.");
  return { ...answer, files };
}

export async function upload(file) {
  const response = await fetch("upload", {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream", "X-Name": encodeURIComponent(file.name) },
    body: file,
  });
  const said = await response.json().catch(() => ({ error: "The file was refused." }));
  if (said.error) throw new Error(said.error);
  return `file:${said.file}`;
}
