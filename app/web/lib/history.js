// The last minutes as columns of equal length, oldest first. They never grow beyond the time that the server keeps.

export class History {
  intervalS = 2;
  seconds = 900;
  t = [];
  server = {};
  devices = {};
  models = {};

  get limit() {
    return Math.ceil(this.seconds / this.intervalS) + 1;
  }

  /** Take the event `history`: what was here before is dropped. `seconds`: how long values are kept. */
  replace(event, seconds = this.seconds) {
    this.intervalS = event.interval_s;
    this.seconds = seconds;
    const { t, ...server } = event.columns;
    this.t = t.slice(-this.limit);
    this.server = this.#cut(server);
    this.devices = Object.fromEntries(Object.entries(event.devices ?? {}).map(([id, columns]) => [id, this.#cut(columns)]));
    this.models = Object.fromEntries(Object.entries(event.models ?? {}).map(([name, columns]) => [name, this.#cut(columns)]));
  }

  /** Take the event `sample`. One that is not newer than the last is left out. */
  append(sample) {
    if (this.t.length && sample.t <= this.t.at(-1)) return;
    const before = this.t.length;
    this.t.push(sample.t);
    add(this.server, sample.server, before, Object.keys(sample.server));
    for (const device of sample.devices) {
      this.devices[device.id] ??= {};
      add(this.devices[device.id], device, before, ["reserved_bytes", "kv_used_bytes", "kv_cached_bytes"]);
    }
    for (const [name, live] of Object.entries(sample.models)) {
      if (this.models[name] === undefined && !live.requests_per_s) continue;
      this.models[name] ??= {};
      add(this.models[name], live, before, ["requests_per_s"]);
    }
    this.#fill();
    if (this.t.length > this.limit) this.#dropOldest(this.t.length - this.limit);
    for (const [name, columns] of Object.entries(this.models)) {
      if (!Object.values(columns).some((column) => column.some((value) => value))) delete this.models[name];
    }
    for (const id of Object.keys(this.devices)) {
      if (!Object.values(this.devices[id]).some((column) => column.some((value) => value !== null))) delete this.devices[id];
    }
  }

  /** Number of values that are kept, for tests. */
  get size() {
    return this.#columns().reduce((sum, column) => sum + column.length, this.t.length);
  }

  #columns() {
    const groups = [this.server, ...Object.values(this.devices), ...Object.values(this.models)];
    return groups.flatMap((group) => Object.values(group));
  }

  #cut(columns) {
    const length = this.t.length;
    return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, column.slice(-length)]));
  }

  #fill() {
    for (const column of this.#columns()) if (column.length < this.t.length) column.push(null);
  }

  #dropOldest(count) {
    this.t.splice(0, count);
    for (const column of this.#columns()) column.splice(0, count);
  }
}

function add(columns, values, before, names) {
  for (const name of names) {
    columns[name] ??= new Array(before).fill(null);
    columns[name].push(values[name] ?? null);
  }
}
