// What the views share: a question that is asked again as values change, with its progress, its
// errors and its answer's place.

import { ask } from "./ask.js";
import { make } from "./parts.js";
import { Latest, Stopped } from "./turns.js";

const SHOWN_MS = 400; // before this, an answer is shown without saying that it is awaited

export class Asked {
  // draw(answer, head, values) gives what is shown; options: wait (ms of quiet before it is asked),
  // stop (whether it can be stopped), say(answer) (a sentence for those who listen), refused()
  constructor(view, question, draw, options = {}) {
    this.view = view;
    this.question = question;
    this.draw = draw;
    this.options = options;
    this.status = make("div", { class: "status", role: "status", "aria-live": "polite" });
    this.place = make("div", {});
    this.node = make("div", { "data-question": question }, this.status, this.place);
    this.latest = new Latest((values) => this.#run(values), options.wait ?? 0);
    this.moves = 0;
  }

  ask(values) {
    this.moves += 1;
    this.node.setAttribute("data-asked", this.moves);
    this.latest.ask([this.moves, values]);
  }

  clear() {
    this.latest.forget();
    this.status.replaceChildren();
    this.place.replaceChildren();
  }

  refused(words) {
    this.options.refused?.();
    this.status.replaceChildren(make("p", { class: "error", role: "alert" }, words));
    this.place.classList.add("stale");
  }

  async #run([move, values]) {
    const stopper = new AbortController();
    let head = {};
    let bar = null;
    const told = (said) => {
      if (said.command) head = said;
      else if (bar) bar.textContent = said.progress;
    };
    const timer = setTimeout(() => {
      bar = make("span", {}, "working…");
      const stop = () => { this.latest.forget(); stopper.abort(); };
      const button = this.options.stop ? make("button", { type: "button", onclick: stop }, "Stop") : null;
      this.status.replaceChildren(make("div", { class: "working" }, make("progress", { "aria-label": "working" }), bar, button));
      this.place.classList.add("stale");
    }, SHOWN_MS);
    try {
      const answer = await ask(this.view, this.question, values, told, stopper.signal);
      clearTimeout(timer);
      this.status.textContent = this.options.say?.(answer) ?? "";
      this.place.replaceChildren(...[this.draw(answer, head, values)].flat());
      this.place.classList.remove("stale");
    } catch (error) {
      clearTimeout(timer);
      if (error instanceof Stopped) this.status.textContent = error.message;
      else this.refused(error.message);
    }
    this.node.setAttribute("data-answered", move);
  }
}
