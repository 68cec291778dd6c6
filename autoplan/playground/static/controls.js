// The controls: what may be chosen, sliders with round steps, and the link that holds them.

// Fields of a question by the kind of its job: numbers, and words of lists.
const NUMBERS = {
  training: ["devices", "sequence_length", "global_batch_size", "headroom_percent", "adapter_rank"],
  serving: [
    "devices",
    "input_tokens",
    "output_tokens",
    "longest_request",
    "clients",
    "requests_per_minute",
    "first_token_ms",
    "token_ms",
    "headroom_percent",
  ],
};
const LISTS = {
  training: ["model", "hardware", "precision", "objectives", "stack", "optimizer", "offload"],
  serving: ["model", "hardware", "engine", "load", "weights", "kv_cache", "limit_on", "trade"],
};
const KINDS = ["training", "serving"];
const SHARED = ["kind", "target"];
const TEXTS = ["image"];
const ALL_NUMBERS = [...new Set(KINDS.flatMap((kind) => NUMBERS[kind]))];
const ALL_LISTS = [...new Set(KINDS.flatMap((kind) => LISTS[kind]))];
/** Sliders that have round numbers of tokens, sequences, clients or milliseconds. */
const SLIDERS = {
  sequence_length: [256, 1048576],
  global_batch_size: [1, 16384],
  input_tokens: [64, 131072],
  output_tokens: [16, 32768],
  clients: [1, 4096],
  requests_per_minute: [1, 32768],
};

const control = (name) => document.getElementById(name);
const slider = (name) => document.getElementById(`${name}-slider`);

function filled(select, choices, words = (choice) => choice.title) {
  select.replaceChildren(...choices.map((choice) => new Option(words(choice), choice.name)));
}

const named = (choice) => (choice.title === choice.name ? choice.name : `${choice.title} (${choice.name})`);

/** Return powers of two from `low` to `high`, with the values half-way where there are `halves`. */
function powers(low, high, halves) {
  const values = [];
  for (let value = low; value <= high; value *= 2) {
    values.push(value);
    if (halves && value >= 2 && value * 1.5 < high) values.push(value * 1.5);
  }
  return values;
}

/** Return numbers of devices that fill a part of one node evenly, or whole nodes. */
export function deviceSteps(perNode, usualNodes, most) {
  const parts = [];
  for (let devices = 1; devices < perNode; devices += 1) if (perNode % devices === 0) parts.push(devices);
  const nodes = [...powers(1, 2048, true), usualNodes].filter((count) => count * perNode <= most);
  const whole = [...new Set(nodes)].sort((a, b) => a - b).map((count) => count * perNode);
  return [...parts, ...whole];
}

/** The controls of the page; `changed` is called when one of them is. */
export class Controls {
  constructor(choices, changed) {
    this.choices = choices;
    this.hardware = new Map(choices.hardware.map((entry) => [entry.name, entry]));
    this.steps = { headroom_percent: Array.from({ length: 61 }, (_, percent) => percent) };
    for (const [name, [low, high]] of Object.entries(SLIDERS)) this.steps[name] = powers(low, high, true);
    filled(control("model"), choices.models, named);
    this.fillHardware();
    filled(control("precision"), choices.precisions);
    filled(control("objectives"), choices.objectives);
    filled(control("stack"), [{ name: "", title: "that of each usual program" }, ...choices.stacks], (c) => (c.name ? named(c) : c.title));
    filled(control("optimizer"), choices.optimizers);
    filled(control("offload"), choices.offloading);
    filled(control("engine"), choices.engines);
    filled(control("load"), choices.loads);
    filled(control("weights"), choices.weights);
    filled(control("kv_cache"), choices.kv_caches);
    filled(control("limit_on"), choices.limit_ons);
    filled(control("trade"), choices.trades);
    this.fillTargets();
    for (const name of ALL_NUMBERS) control(name).max = choices.largest[name];
    this.changed = changed;
    this.listen();
  }

  fillHardware() {
    const groups = [["Nodes", (entry) => entry.nodes === 1], ["Clusters", (entry) => entry.nodes > 1]];
    for (const [label, belongs] of groups) {
      const group = document.createElement("optgroup");
      group.label = label;
      group.append(...this.choices.hardware.filter(belongs).map((entry) => new Option(named(entry), entry.name)));
      control("hardware").append(group);
    }
  }

  /** Offer the targets of the job: frameworks, or what starts its engine; the chosen one stays where it can. */
  fillTargets() {
    const before = control("target").value;
    const engine = control("engine").value.split("@")[0];
    const own = this.choices.engine_targets.filter((target) => target.engines.includes(engine));
    const targets = this.kind === "serving" ? own : this.choices.targets;
    filled(control("target"), targets, named);
    if (targets.some((target) => target.name === before)) control("target").value = before;
    control("target").disabled = !targets.length;
  }

  listen() {
    for (const name of [...SHARED, ...ALL_LISTS, ...ALL_NUMBERS, ...TEXTS]) {
      control(name).addEventListener("input", () => {
        if (name === "hardware") this.followHardware();
        if (name === "kind") this.followKind();
        if (name === "engine") this.fillTargets();
        this.show();
        this.changed(name);
      });
    }
    for (const name of ["devices", ...Object.keys(this.steps)]) {
      slider(name).addEventListener("input", () => {
        control(name).value = this.stepsOf(name)[Number(slider(name).value)];
        this.show();
        this.changed(name);
      });
    }
    document.getElementById("question").addEventListener("submit", (event) => event.preventDefault());
  }

  get kind() {
    return control("kind").value;
  }

  stepsOf(name) {
    if (name !== "devices") return this.steps[name];
    const entry = this.hardware.get(control("hardware").value);
    return deviceSteps(entry.devices_per_node, entry.nodes, this.choices.largest.devices);
  }

  /** Keep the number of nodes where the hardware changes; of a cluster, take all of its nodes. */
  followHardware() {
    const entry = this.hardware.get(control("hardware").value);
    const before = this.before ?? entry;
    const nodes = Number(control("devices").value) / before.devices_per_node;
    const wanted = entry.nodes > 1 ? entry.nodes : Math.max(1, Math.round(nodes));
    const most = Math.max(1, Math.floor(this.choices.largest.devices / entry.devices_per_node));
    control("devices").value = Math.min(wanted, most) * entry.devices_per_node;
  }

  /** Begin with the usual question of a kind, with the model and the hardware that are chosen. */
  followKind() {
    const { model, hardware, devices } = Object.fromEntries(["model", "hardware", "devices"].map((name) => [name, control(name).value]));
    const own = new URLSearchParams({ kind: this.kind, model, hardware, devices });
    this.apply(own.toString());
  }

  /** Make sliders, hints and what is shown at all say what the fields say. */
  show() {
    const { kind } = this;
    for (const part of document.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind;
    for (const part of document.querySelectorAll("[data-load]")) part.hidden = part.dataset.load !== control("load").value;
    for (const name of ["devices", ...Object.keys(this.steps)]) {
      const steps = this.stepsOf(name);
      const value = Number(control(name).value);
      const nearest = steps.reduce((best, step, index) => (Math.abs(step - value) < Math.abs(steps[best] - value) ? index : best), 0);
      const range = slider(name);
      range.min = 0;
      range.max = steps.length - 1;
      range.step = 1;
      range.value = nearest;
      range.setAttribute("aria-valuetext", control(name).value);
    }
    const entry = this.hardware.get(control("hardware").value);
    this.before = entry;
    const nodes = Number(control("devices").value) / entry.devices_per_node;
    const count = nodes < 1 ? "a part of one node" : nodes === 1 ? "1 node" : `${Number(nodes.toFixed(2)).toLocaleString("en")} nodes`;
    document.getElementById("devices-hint").textContent = `${count} of ${entry.devices_per_node} × ${entry.device}`;
    document.getElementById("image-field").hidden = !this.takesImage();
  }

  /** Return whether the target starts the program in a container that the user names. */
  takesImage() {
    if (this.kind === "training") return ["kubernetes", "skypilot"].includes(this.target);
    return this.choices.engine_targets.some((target) => target.name === this.target && target.image);
  }

  /** Return the question as the server takes it, or null where a field is no number that it may be. */
  question() {
    const { kind } = this;
    const question = { kind };
    for (const name of NUMBERS[kind]) {
      if (!control(name).checkValidity()) return null;
      question[name] = Number(control(name).value);
    }
    for (const name of LISTS[kind]) question[name] = control(name).value;
    return question;
  }

  /** Return the first field that is not valid. */
  invalid() {
    return NUMBERS[this.kind].map(control).find((field) => !field.checkValidity());
  }

  get target() {
    return control("target").value;
  }

  get image() {
    return document.getElementById("image-field").hidden ? "" : control("image").value;
  }

  /** Return the query of the link to what is shown. */
  query(plan) {
    const values = { ...this.question(), target: this.target };
    if (this.image) values.image = this.image;
    if (plan) values.plan = plan;
    return new URLSearchParams(values).toString();
  }

  /** Set the controls to a query; returns what of it cannot be shown, in words. */
  apply(query) {
    const given = new URLSearchParams(query);
    const refused = [];
    const asked = given.get("kind") ?? "training";
    const kind = KINDS.includes(asked) ? asked : "training";
    if (kind !== asked) refused.push(`kind=${asked.slice(0, 60)}`);
    control("kind").value = kind;
    const first = this.choices.first[kind];
    for (const name of [...LISTS[kind], ...NUMBERS[kind], ...TEXTS]) {
      const value = given.get(name) ?? first[name] ?? "";
      const field = control(name);
      field.value = value;
      const taken = NUMBERS[kind].includes(name) ? /^[0-9]{1,9}$/.test(value) && field.checkValidity() : field.value === String(value);
      if (!taken) {
        refused.push(`${name}=${String(value).slice(0, 60)}`);
        field.value = first[name];
      }
    }
    this.fillTargets();
    const target = given.get("target") ?? first.target;
    control("target").value = target;
    if (control("target").value !== target) {
      if (given.has("target")) refused.push(`target=${target.slice(0, 60)}`);
      control("target").selectedIndex = 0;
    }
    this.before = undefined;
    this.show();
    return refused;
  }
}
