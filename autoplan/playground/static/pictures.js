// Pictures of an answer, as SVG. Text goes through textContent alone.

const SVG = "http://www.w3.org/2000/svg";
export const GIB = 2 ** 30;

/** Return an SVG element with attributes and, where given, its text. */
function drawn(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/** Return up to about `count` round values from `low` to `high`. */
export function roundValues(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const values = [];
  for (let index = Math.ceil(low / step); index * step <= high * (1 + 1e-12); index += 1)
    values.push(Number((index * step).toPrecision(12)));
  return values;
}

/** Return a function from values to pixels. */
function scale(low, high, start, end) {
  return (value) => start + ((value - low) / (high - low || 1)) * (end - start);
}

/**
 * What the picture of a front has on its axes, by the kind of its job: titles, and a function that returns the
 * place of a prediction with the ends of its interval. `keys` name the attributes of a point.
 */
const VIEWS = {
  training: {
    title: "step time against peak memory",
    across: "step time (s), lines are 90 % intervals",
    up: "peak memory of a device (GiB)",
    keys: ["data-step-seconds", "data-memory-bytes"],
    x: (p) => p.step_seconds,
    y: (p) => p.peak_memory_bytes_per_device,
    unit: [1, GIB],
    ends: (p) => [p.peak_memory_bytes_low, p.peak_memory_bytes_high],
    ends_across: (p) => [p.step_seconds_low, p.step_seconds_high],
    limit: (p) => p.memory_limit_bytes,
    labels: ["fastest", "least memory"],
  },
  serving: {
    title: "time for each token against throughput",
    across: "mean time for each output token (ms), lines are 90 % intervals",
    up: "output tokens a second of each device",
    keys: ["data-token-seconds", "data-tokens-per-second"],
    x: (p) => p.time_per_output_token_seconds,
    y: (p) => p.output_tokens_per_second_per_device,
    unit: [1e-3, 1],
    ends: (p) => [p.output_tokens_per_second_low, p.output_tokens_per_second_high].map((rate) => rate / p.devices),
    ends_across: (p) => [p.time_per_output_token_seconds_low, p.time_per_output_token_seconds_high],
    limit: () => null,
    labels: ["fastest token", "most tokens/s"],
  },
};

const FRONT = { width: 820, height: 330, left: 62, right: 800, top: 26, bottom: 284 };

/**
 * Return the front of a kind of job: a point for each plan.
 * `choose` is called with the index of a point that is clicked; the radio buttons of the table do the same.
 */
export function frontPicture(kind, front, chosen, words, choose) {
  const { width, height, left, right, top, bottom } = FRONT;
  const view = VIEWS[kind];
  const [unitX, unitY] = view.unit;
  const predicted = front.map((plan) => plan.predicted);
  const steps = predicted.map((p) => view.x(p) / unitX);
  const bound = view.limit(predicted[0]);
  const most = Math.max(bound === null ? 0 : bound / unitY, ...predicted.map((p) => Math.max(view.y(p), view.ends(p)[1]) / unitY));
  const intervals = predicted.map((p) => view.ends_across(p).map((value) => value / unitX));
  const across = [...steps, ...intervals.flat()];
  const spread = Math.max(...across) - Math.min(...across);
  const room = spread > 0 ? 0.03 * spread : 0.1 * steps[0];
  const shown = [Math.min(...across) - room, Math.max(...across) + room];
  const x = scale(...shown, left, right);
  const y = scale(0, 1.05 * most, bottom, top);
  const label = `${front.length} plans: ${view.title}; the table below has the same numbers`;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of roundValues(...shown, 7)) {
    svg.append(drawn("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom }));
    svg.append(drawn("text", { class: "small", x: x(value), y: bottom + 18, "text-anchor": "middle" }, `${value}`));
  }
  for (const value of roundValues(0, 1.05 * most, 5)) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { class: "small", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value.toLocaleString("en")));
  }
  svg.append(drawn("text", { class: "small", x: right, y: bottom + 38, "text-anchor": "end" }, view.across));
  svg.append(drawn("text", { class: "small", x: 6, y: 14 }, view.up));
  if (bound !== null) {
    const limit = bound / unitY;
    svg.append(drawn("line", { class: "limit", x1: left, x2: right, y1: y(limit), y2: y(limit) }));
    svg.append(drawn("text", { class: "small", x: right, y: y(limit) - 5, "text-anchor": "end" }, `limit ${limit.toFixed(1)} GiB`));
  }
  predicted.forEach((p, index) => {
    const at = { cx: x(steps[index]), cy: y(view.y(p) / unitY) };
    const [low, high] = view.ends(p);
    const kind = index === chosen ? "whisker chosen" : "whisker";
    svg.append(drawn("line", { class: kind, x1: at.cx, x2: at.cx, y1: y(low / unitY), y2: y(high / unitY) }));
    const [earliest, latest] = intervals[index].map(x);
    svg.append(drawn("line", { class: kind, x1: earliest, x2: latest, y1: at.cy, y2: at.cy }));
    const data = { [view.keys[0]]: view.x(p), [view.keys[1]]: view.y(p) };
    const point = drawn("circle", { class: index === chosen ? "point chosen" : "point", r: index === chosen ? 7 : 5, ...at, ...data });
    point.append(drawn("title", {}, words[index]));
    point.addEventListener("click", () => choose(index));
    svg.append(point);
  });
  const ends = [steps.indexOf(Math.min(...steps)), steps.indexOf(Math.max(...steps))];
  if (ends[0] !== ends[1]) {
    ends.forEach((index, end) => {
      const place = { x: x(steps[index]) + (end ? -11 : 11), y: y(view.y(predicted[index]) / unitY) - 11, "text-anchor": end ? "end" : "start" };
      svg.append(drawn("text", { class: "label", ...place }, view.labels[end]));
    });
  }
  return svg;
}

/** Return parts [{value, colour, text}] side by side on a scale that ends at `whole`, with a line at `limit`. */
export function stackedBar(parts, whole, limit = null) {
  const svg = drawn("svg", { class: "stack", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let reached = 0;
  for (const part of parts) {
    const width = (1000 * part.value) / whole;
    if (width > 0) {
      const box = drawn("rect", { x: reached, width, height: 10, fill: part.colour });
      box.append(drawn("title", {}, part.text));
      svg.append(box);
    }
    reached += Math.max(0, width);
  }
  if (limit !== null) {
    const at = Math.min(999, (1000 * limit) / whole);
    svg.append(drawn("line", { class: "line", x1: at, x2: at, y1: 0, y2: 10 }));
  }
  return svg;
}

/** Return a square of a colour with its name. */
export function colourKey(name, colour) {
  const key = document.createElement("span");
  const box = drawn("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" });
  box.append(drawn("rect", { width: 8, height: 8, fill: colour }));
  key.append(box, name);
  return key;
}
