// Questions in turn, and one that nobody waits for any more.

export class Stopped extends Error {}

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
