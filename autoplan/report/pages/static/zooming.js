const SVG = "http://www.w3.org/2000/svg", WIDTH = 1100, LEFT = 64, ROW = 30, BAR = 22, TOP = 8;
function words(seconds) {
  const size = Math.abs(seconds);
  if (size >= 0.99995 || size === 0) return seconds.toFixed(2) + " s";
  if (size >= 0.99995e-3) return (seconds * 1e3).toFixed(1) + " ms";
  return (seconds * 1e6).toFixed(1) + " us";
}
function add(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
for (const zoom of document.querySelectorAll(".zoom")) {
  const rows = JSON.parse(zoom.dataset.pieces), kinds = JSON.parse(zoom.dataset.kinds);
  const step = Number(zoom.dataset.seconds), tick = Number(zoom.dataset.tick);
  const frame = zoom.querySelector(".picture"), status = zoom.querySelector("[role=status]");
  const svg = add(frame, "svg", { class: "timeline", role: "img", "aria-label": "the predicted step by stage",
    viewBox: "0 0 " + WIDTH + " " + (TOP + ROW * rows.length + 40), width: WIDTH });
  const shortest = Math.min(step, step / 1e5 + 20 * tick);
  let from = 0, to = step;
  function at(seconds) { return LEFT + (seconds - from) / (to - from) * (WIDTH - LEFT - 10); }
  function axis(bottom) {
    const raw = (to - from) / 6, power = 10 ** Math.floor(Math.log10(raw));
    const interval = [1, 2, 5, 10].find((digit) => digit * power >= raw) * power;
    for (let i = Math.ceil(from / interval); i * interval <= to; i += 1) {
      const x = at(i * interval).toFixed(1);
      add(svg, "line", { class: "grid", x1: x, x2: x, y1: TOP - 4, y2: bottom });
      add(svg, "text", { class: "small middle", x, y: bottom + 16 }, words(i * interval));
    }
    add(svg, "text", { class: "small last", x: WIDTH - 10, y: bottom + 32 }, "time since the step began");
  }
  function row(stage, pieces, top) {
    add(svg, "text", { class: "small", x: 8, y: top + 16 }, "stage " + stage);
    let start = 0, drawn = -1;
    for (let i = 0; i < pieces.length; i += 3) {
      const end = start + pieces[i + 2] * tick, begin = start;
      start = end;
      if (pieces[i] < 0 || end <= from || begin >= to) continue;
      const left = at(Math.max(begin, from)), right = at(Math.min(end, to));
      // A piece that ends in the pixel that the one before has reached is not seen.
      if (right - Math.max(left, drawn) < 0.4) continue;
      const [kind, colour] = kinds[pieces[i]], number = pieces[i + 1];
      const of = number < 0 ? "" : " of microbatch " + number;
      const box = add(svg, "rect", { x: left.toFixed(2), y: top, width: (right - left).toFixed(2),
        height: BAR, fill: colour, class: kind.replace(" ", "-") });
      add(box, "title", {}, "stage " + stage + ": " + kind + of + ", " + words(end - begin) + " from "
        + words(begin));
      if (number >= 0 && right - left >= 16 && (kind === "forward" || kind === "backward"))
        add(svg, "text", { class: "inside", x: ((left + right) / 2).toFixed(1), y: top + 15 }, number);
      drawn = right;
    }
  }
  function draw() {
    svg.replaceChildren();
    const bottom = TOP + ROW * rows.length;
    axis(bottom);
    rows.forEach(([stage, pieces], index) => row(stage, pieces, TOP + ROW * index));
    status.textContent = words(from) + " to " + words(to) + " of " + words(step);
  }
  function span(start, length) {
    length = Math.min(step, Math.max(shortest, length));
    from = Math.min(Math.max(0, start), step - length);
    to = from + length;
    draw();
  }
  const acts = {
    in: () => span(from + (to - from) / 4, (to - from) / 2),
    out: () => span(from - (to - from) / 2, (to - from) * 2),
    earlier: () => span(from - (to - from) / 4, to - from),
    later: () => span(from + (to - from) / 4, to - from),
    start: () => span(0, to - from),
    end: () => span(step, to - from),
    all: () => span(0, step),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", Home: "start",
    End: "end", "0": "all" };
  for (const button of zoom.querySelectorAll("button"))
    button.addEventListener("click", () => acts[button.dataset.act]());
  frame.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[keys[event.key]]();
  });
  frame.addEventListener("dblclick", acts.in);
  zoom.hidden = false;
  for (const still of zoom.parentElement.querySelectorAll(".still")) still.hidden = true;
  draw();
}
