// The state of the view, what changes it (pointer, keys, address), and what is drawn again then.

const KEYS = [
  ["j k", "next, previous group"], ["n p", "next, previous step"], ["s", "next shade of the tokens"], ["o", "next order of the groups"],
  ["x", "next x axis of the curves"], ["a", "all figures, or the main ones"], ["f", "next fork"],
  ["\u2190 \u2192", "token under the cursor"], ["Tab Enter", "to a control, press it"], ["/", "filter the groups"],
  ["Esc", "leave the filter or this help"], ["?", "this help"],
];
const state = { step: null, group: null, shade: "hindsight", x: "steps", sort: "spread", q: "", all: false };
let data = null;

const act = {
  set(changes) {
    const before = { ...state };
    Object.assign(state, changes);
    if (changes.q !== undefined || changes.step !== undefined) keepGroupInStep(changes);
    writeAddress(state.step !== before.step || state.group !== before.group);
    redraw(before);
  },
  step(by) {
    const steps = stepsOf(data.groups);
    const next = steps[steps.indexOf(state.step) + by];
    if (next !== undefined) act.set({ step: next, group: null });
  },
  group(by) {
    const rows = chosen(data.groups, state);
    if (!rows.length) return;
    const at = rows.indexOf(state.group);
    act.set({ group: rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + by))] });
  },
  filter(words) {
    state.q = words;
    writeAddress(false);
    renderRows(data.groups, state, act);
    searchNow();
  },
};

const searchNow = (delay) => searchTexts(data.groups, state.step, state.q, () => renderRows(data.groups, state, act), delay);

function cycle(key, values) {
  act.set({ [key]: values[(values.indexOf(state[key]) + 1) % values.length] });
}

// A step without groups shows the last one before it; a group of another step is closed.
function keepGroupInStep() {
  const steps = stepsOf(data.groups);
  if (steps.length && !steps.includes(state.step)) state.step = steps.findLast((step) => step <= state.step) ?? steps[0];
  if (state.group !== null && data.groups[state.group].step !== state.step) state.group = null;
}

function redraw(before) {
  const changed = (...names) => !before || names.some((name) => state[name] !== before[name]);
  if (changed("x", "all")) renderCurves(data.curves, state, act);
  if (changed("x", "all", "step")) pointAt(state.step);
  if (changed("step", "sort", "q")) renderList(data.groups, state, act);
  if (changed("group")) {
    for (const row of document.querySelectorAll("#rows tr[data-row]")) {
      row.setAttribute("aria-selected", String(Number(row.dataset.row) === state.group));
      if (Number(row.dataset.row) === state.group) row.scrollIntoView({ block: "nearest" });
    }
    inspect(null);
    openGroup(data, state).catch(complain);
  } else if (changed("shade")) {
    shadeAll(state.shade);
    if (view && view.cursor) inspect(view.cursor);
  }
}

// --- the address ------------------------------------------------------------------------------------

function writeAddress(push) {
  const { step, group, shade, x, sort, q, all } = state;
  const parts = new URLSearchParams();
  if (step !== null) parts.set("step", step);
  if (group !== null) parts.set("group", data.groups[group].id);
  parts.set("shade", shade);
  if (x !== "steps") parts.set("x", x);
  if (sort !== "spread") parts.set("sort", sort);
  if (q) parts.set("q", q);
  if (all) parts.set("all", "1");
  const hash = `#${parts.toString().replaceAll("%2F", "/")}`;
  if (hash !== location.hash) history[push ? "pushState" : "replaceState"](null, "", hash);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const steps = stepsOf(data.groups);
  const known = (name, values, otherwise) => (values.includes(parts.get(name)) ? parts.get(name) : otherwise);
  const row = parts.has("group") ? data.groups.findIndex((group) => group.id === parts.get("group")) : -1;
  const asked = Number(parts.get("step"));
  state.group = row < 0 ? null : row;
  state.step = row >= 0 ? data.groups[row].step : steps.includes(asked) ? asked : steps.at(-1) ?? null;
  state.shade = parts.get("shade") || "hindsight";
  state.x = known("x", Object.keys(AXES), "steps");
  state.sort = known("sort", Object.keys(SORTS), "spread");
  state.q = parts.get("q") || "";
  state.all = parts.get("all") === "1";
}

function restore() {
  readAddress();
  if (state.group === null && !new URLSearchParams(location.hash.slice(1)).has("step")) state.group = chosen(data.groups, state)[0] ?? null;
  writeAddress(false);
  redraw(null);
  searchNow(0);
}

// --- keys -------------------------------------------------------------------------------------------

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const help = document.getElementById("help");
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || (help.open && event.key !== "?")) return;
  const keys = {
    j: () => act.group(1), k: () => act.group(-1), n: () => act.step(1), p: () => act.step(-1),
    s: () => cycle("shade", [...shadesHere(), "none"]), o: () => cycle("sort", Object.keys(SORTS)), x: () => cycle("x", Object.keys(AXES)),
    a: () => act.set({ all: !state.all }), f: nextFork, ArrowRight: () => moveCursor(1), ArrowLeft: () => moveCursor(-1),
    "/": () => document.getElementById("search")?.focus(), "?": () => (help.open ? help.close() : help.showModal()),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

function renderHelp() {
  const rows = KEYS.map(([keys, what]) => make("tr", {}, make("td", {}, keys.split(" ").map((key) => make("kbd", {}, key))), make("td", {}, what)));
  document.getElementById("help").append(make("h2", {}, "Keys"), make("table", {}, make("tbody", {}, rows)),
    make("p", { class: "quiet" }, "The address names the view: copy it to come back to it. Token figures are kept on 8 bits, about 2 % at the ends."),
    make("form", { method: "dialog" }, make("button", {}, "close")));
  document.getElementById("head").append(make("button", { id: "keys", onclick: () => document.getElementById("help").showModal() }, "? keys"));
}

function complain(error) {
  document.getElementById("group").replaceChildren(make("p", { class: "note" }, `This page cannot be shown here: ${error.message}`));
  throw error;
}

async function start() {
  data = await readOverview();
  renderHead(data);
  renderHelp();
  restore();
  addEventListener("popstate", restore);
  addEventListener("keydown", onKey);
  document.getElementById("group").addEventListener("pointerover", (event) => { if (event.target.classList.contains("t")) inspect(event.target); });
  document.body.dataset.ready = "1";
}

start().catch(complain);
