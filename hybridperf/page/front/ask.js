// Questions to the server: an answer comes as lines, progress first.

export class Stopped extends Error {}

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

// Runs one question at a time, always with the newest values: moves in between are passed over.
export class Latest {
  #run;
  #next;
  #busy = false;
  #timer = 0;

  constructor(run, wait = 0) {
    this.#run = run;
    this.wait = wait;
  }

  ask(values) {
    this.#next = values;
    clearTimeout(this.#timer);
    if (this.wait) this.#timer = setTimeout(() => this.#go(), this.wait);
    else this.#go();
  }

  forget() {
    clearTimeout(this.#timer);
    this.#next = undefined;
  }

  async #go() {
    if (this.#busy) return;
    this.#busy = true;
    while (this.#next !== undefined) {
      const values = this.#next;
      this.#next = undefined;
      await this.#run(values);
    }
    this.#busy = false;
  }
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
