// The groups of a step: sorted, filtered, one of them open.

const SORTS = { spread: "reward spread", mean: "mean reward", id: "id" };
const MOST_ROWS = 500;

function stepsOf(groups) {
  return [...new Set(groups.map((group) => group.step))].sort((a, b) => a - b);
}

// Returns the row numbers to be shown, in order.
function chosen(groups, state) {
  const rows = [...groups.keys()].filter((row) => groups[row].step === state.step && matches(groups[row], row, state.q));
  const index = (group) => Number(group.id.split("/").at(-1)) || 0;
  const by = {
    spread: (a, b) => b.spread - a.spread || index(a) - index(b),
    mean: (a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity) || index(a) - index(b),
    id: (a, b) => index(a) - index(b),
  }[state.sort];
  return rows.sort((a, b) => by(groups[a], groups[b]));
}

function renderList(groups, state, act) {
  const host = document.getElementById("list");
  host.replaceChildren();
  if (!groups.length) {
    host.append(make("p", { class: "quiet" }, "This run has no rollouts to show."));
    return;
  }
  const steps = stepsOf(groups);
  const select = make("select", { "aria-label": "step", onchange: (event) => act.set({ step: Number(event.target.value), group: null }) },
    steps.map((step) => make("option", { value: step, selected: step === state.step }, `step ${step}`)));
  const button = (label, by) => make("button", { "aria-label": by < 0 ? "previous step" : "next step", onclick: () => act.step(by) }, label);
  const sort = make("select", { "aria-label": "sort", onchange: (event) => act.set({ sort: event.target.value }) },
    Object.entries(SORTS).map(([name, label]) => make("option", { value: name, selected: name === state.sort }, `by ${label}`)));
  const field = make("input", {
    id: "search", type: "search", placeholder: "filter: words of problems, completions, reflections", "aria-label": "filter", value: state.q,
    oninput: (event) => act.filter(event.target.value),
  });
  host.append(make("div", { class: "bar" }, button("\u2039", -1), select, button("\u203a", 1), sort), field, make("div", { id: "rows" }));
  renderRows(groups, state, act);
}

function renderRows(groups, state, act) {
  const rows = chosen(groups, state);
  const scale = rewardScale(groups);
  const body = rows.slice(0, MOST_ROWS).map((row) => {
    const group = groups[row];
    return make("tr", { "data-row": row, "aria-selected": String(row === state.group), onclick: () => act.set({ group: row }) },
      make("td", { class: "id" }, group.id),
      make("td", { class: "figure" }, number(group.mean), make("small", {}, `\u00b1${number(group.spread)}`)),
      make("td", {}, bars(group.rewards, scale)),
      make("td", { class: "question" }, group.forks ? make("span", { class: "forks", title: plural(group.forks, "continuation") }, "forks") : null,
        visible(group.question)));
  });
  const header = ["id", "reward", "rollouts", "problem"].map((name) => make("th", {}, name));
  const table = make("table", { class: "groups" }, make("thead", {}, make("tr", {}, header)), make("tbody", {}, body));
  const status = rowsStatus(groups, state, act, rows.length);
  document.getElementById("rows").replaceChildren(...(state.q.trim() ? [status, table] : [table, status]));
}

function rowsStatus(groups, state, act, here) {
  const more = here > MOST_ROWS ? ` The first ${MOST_ROWS} are shown.` : "";
  if (!state.q.trim()) return make("p", { class: "quiet" }, `${plural(here, "group")}.${more}`);
  const { text, steps } = searchStatus(groups, state, here);
  const next = steps.sort((a, b) => a - b).find((step) => step > state.step) ?? steps.find((step) => step !== state.step);
  return make("p", { id: "matches", class: "quiet", "aria-live": "polite" }, `${text}${more}`,
    next === undefined ? null : make("button", { class: "more", onclick: () => act.set({ step: next, group: null }) }, `step ${next}`));
}

function rewardScale(groups) {
  let [low, high] = [0, 0];
  for (const group of groups) {
    for (const reward of group.rewards) if (reward !== null) [low, high] = [Math.min(low, reward), Math.max(high, reward)];
  }
  return (reward) => (reward - low) / (high - low || 1);
}

// A bar per rollout, as high as its reward; a dash for none.
function bars(rewards, scale) {
  const width = Math.max(2, Math.min(6, Math.floor(90 / rewards.length)));
  const svg = draw("svg", { class: "bars", viewBox: `0 0 ${rewards.length * width} 18`, width: rewards.length * width, height: 18 });
  rewards.forEach((reward, i) => {
    const high = reward === null ? 1 : 1 + 16 * scale(reward);
    svg.append(draw("rect", { class: reward === null ? "none" : "bar", x: i * width, y: 18 - high, width: width - 1, height: high }));
  });
  return svg;
}
