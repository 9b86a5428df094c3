// Curves of the run, each in its own small frame, over steps, generated tokens or seconds.

const MAIN = ["reward", "solved", "length", "entropy", "grad_norm", "cross_entropy", "teacher/kl"];
const AXES = { steps: "steps", tokens: "generated tokens", seconds: "seconds" };
const LABELS = {
  reward: "reward, mean", solved: "solved, share", length: "length, tokens", entropy: "entropy, nats",
  grad_norm: "gradient norm", cross_entropy: "cross-entropy, nats per token",
  "teacher/kl": "KL to the teachers, nats per token",
  "seconds/reflect": "reflection, s over roots", "seconds/score": "scoring, s over roots",
  "seconds/examination_share": "both, share of root time", cache_hit: "cache hits, share",
};
const FORKS = ["branching/", "seconds/"]; // figures of runs that fork
const WIDTH = 260, HEIGHT = 92, LEFT = 3, RIGHT = 46, TOP = 7, BOTTOM = 17;
let charts = [];

function isMain(name) {
  return MAIN.includes(name) || name.startsWith("held-out") || isOfForks(name);
}

function isOfForks(name) {
  return FORKS.some((start) => name.startsWith(start));
}

function order(name) {
  if (name.startsWith("held-out")) return 1.5;
  const at = MAIN.indexOf(name);
  return at >= 0 ? at : isOfForks(name) ? 50 : 100;
}

function positions(curves, axis) {
  const before = { steps: 0, tokens: 0, seconds: 0 }[axis];
  const at = new Map([[0, before]]);
  curves.steps.forEach((step, i) => at.set(step, curves[axis][i]));
  return at;
}

function renderCurves(curves, state, act) {
  const host = document.getElementById("curves");
  host.replaceChildren();
  charts = [];
  if (!curves) return;
  const names = Object.keys(curves.figures).filter((name) => curves.figures[name].length);
  const shown = names.filter((name) => state.all || isMain(name)).sort((a, b) => order(a) - order(b));
  if (!shown.length) return;
  const at = positions(curves, state.x);
  const grid = make("div", { class: "grid" });
  for (const name of shown) charts.push(chart(name, curves.figures[name], at, state, act));
  grid.append(...charts.map((each) => each.element));
  const rest = names.length - names.filter(isMain).length;
  host.append(axisSwitch(state, act, rest), grid);
}

function axisSwitch(state, act, rest) {
  const buttons = Object.entries(AXES).map(([axis, label]) =>
    make("button", { "aria-pressed": String(state.x === axis), onclick: () => act.set({ x: axis }) }, label));
  const all = make("button", { "aria-pressed": String(state.all), onclick: () => act.set({ all: !state.all }) },
    state.all ? "fewer figures" : `${rest} more figures`);
  return make("div", { class: "bar" }, make("span", { class: "quiet" }, "over"),
    make("span", { class: "switch", role: "group", "aria-label": "x axis" }, buttons), rest ? all : null);
}

function chart(name, pairs, at, state, act) {
  const points = pairs.filter(([step]) => at.has(step)).map(([step, y]) => ({ step, x: at.get(step), y }));
  const xs = [...at.values()];
  const [x0, x1] = [Math.min(...points.map((p) => p.x)), xs.reduce((a, b) => Math.max(a, b), 0)];
  let y0 = points.reduce((low, p) => Math.min(low, p.y), Infinity);
  let y1 = points.reduce((high, p) => Math.max(high, p.y), -Infinity);
  const flat = y0 === y1 ? points[0] : null;
  if (flat) [y0, y1] = [y0 - Math.abs(y0 || 1) / 2, y1 + Math.abs(y1 || 1) / 2];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => TOP + (1 - (y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.append(draw("title", {}, `${name}: ${number(points[0].y)} to ${number(points.at(-1).y)}`));
  for (const y of [TOP, HEIGHT - BOTTOM]) svg.append(draw("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
  const line = points.map((p) => `${px(p.x).toFixed(1)},${py(p.y).toFixed(1)}`).join(" ");
  svg.append(draw("polyline", { class: "curve", points: line }));
  if (points.length < 40) {
    svg.append(...points.map((p) => draw("circle", { class: "dot", cx: px(p.x), cy: py(p.y), r: 1.8 })));
  }
  const text = (x, y, anchor, content) => draw("text", { x, y, "text-anchor": anchor }, content);
  const right = WIDTH - RIGHT + 6;
  if (flat) svg.append(text(right, py(flat.y) + 4, "start", number(flat.y)));
  else svg.append(text(right, TOP + 7, "start", number(y1)), text(right, HEIGHT - BOTTOM, "start", number(y0)));
  svg.append(text(LEFT, HEIGHT - 4, "start", axisText(state.x, x0)), text(WIDTH - RIGHT, HEIGHT - 4, "end", axisText(state.x, x1)));
  const cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
  const bead = draw("circle", { class: "bead", r: 3.2 });
  svg.append(cursor, bead);
  const value = make("output", {}, number(points.at(-1).y));
  const caption = make("figcaption", {}, make("span", { title: name }, LABELS[name] || name.replace("branching/", "fork ")), value);
  const element = make("figure", { class: "chart", "data-name": name }, caption, svg);
  const self = { element, points, px, py, cursor, bead, value };
  svg.addEventListener("pointermove", (event) => pointAt(nearest(self, svg, event).step, true));
  svg.addEventListener("pointerleave", () => pointAt(state.step));
  svg.addEventListener("click", (event) => act.set({ step: nearest(self, svg, event).step, group: null }));
  return self;
}

function axisText(axis, x) {
  return axis === "seconds" ? duration(x) : axis === "tokens" ? `${short(x)} tokens` : `step ${number(x)}`;
}

function nearest(self, svg, event) {
  const box = svg.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * WIDTH;
  return self.points.reduce((best, p) => (Math.abs(self.px(p.x) - x) < Math.abs(self.px(best.x) - x) ? p : best));
}

// Moves the cursor of every chart to `step`, which is named while the pointer chooses it.
function pointAt(step, named = false) {
  for (const { points, px, py, cursor, bead, value } of charts) {
    const found = points.find((p) => p.step === step);
    for (const element of [cursor, bead]) element.style.display = found ? "" : "none";
    const p = found || points.at(-1);
    value.textContent = found && named ? `step ${p.step}: ${number(p.y)}` : number(p.y);
    if (!found) continue;
    cursor.setAttribute("x1", px(p.x));
    cursor.setAttribute("x2", px(p.x));
    bead.setAttribute("cx", px(p.x));
    bead.setAttribute("cy", py(p.y));
  }
}
