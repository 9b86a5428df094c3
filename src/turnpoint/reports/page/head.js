// What was run, what came of it in words, evaluations before and after.

function renderHead(data) {
  document.title = `${visible(data.name)} - turnpoint report`;
  const host = document.getElementById("head");
  const title = make("h1", {}, make("span", { class: "brand" }, "turnpoint"), visible(data.name));
  const facts = make("dl", {});
  for (const [label, lines] of data.facts) {
    facts.append(make("dt", {}, label), make("dd", {}, lines.map((line) => make("div", {}, visible(line)))));
  }
  const notes = data.notes.map((note) => make("p", { class: "note" }, visible(note)));
  const left = make("div", {}, facts, evaluationTable(data.evaluations));
  host.append(title, ...notes, make("div", { class: "two" }, left, findingList(data.findings)));
}

function findingList(findings) {
  if (!findings.length) return null;
  const items = findings.map((it) =>
    make("li", { class: it.warning ? "warning" : "fine" }, visible(it.text),
      it.step === null ? null : make("span", { class: "quiet" }, ` ${when(it)}`)));
  return make("div", {}, make("h2", {}, "Findings"), make("ul", { class: "findings" }, items));
}

function when(it) {
  return it.times === 1 ? `step ${it.step}` : `${it.times} steps, last in step ${it.step}`;
}

function evaluationTable(evaluations) {
  if (!evaluations.length) return null;
  const ends = evaluations.length > 1 ? [evaluations[0], evaluations.at(-1)] : evaluations;
  const header = ["held out", "step", "accuracy", "95 % interval", "reward", "truncated", "invalid", "tokens"];
  const body = [];
  for (const it of ends) {
    for (const [name, score] of Object.entries(it.scores)) {
      const range = score.interval ? score.interval.map((x) => (100 * x).toFixed(1)).join(" - ") : "";
      body.push([name, it.step, percent(score.accuracy), range, number(score.reward), percent(score.truncated), score.invalid,
        Math.round(score.tokens)]);
    }
  }
  for (const it of ends) {
    for (const [k, share, range] of it.passes) {
      body.push([`pass@${k}`, it.step, percent(share), range ? range.map((x) => (100 * x).toFixed(1)).join(" - ") : "", "", "", "", ""]);
    }
  }
  if (ends[0].majority) {
    const [answer, share] = ends[0].majority;
    body.push([`always "${visible(answer)}"`, "", percent(share), "", "", "", "", ""]);
  }
  const cells = (row, tag) => make("tr", {}, row.map((cell) => make(tag, {}, String(cell))));
  return make("table", { class: "evaluations" }, make("caption", {}, plural(ends[0].problems, "held-out problem")),
    make("thead", {}, cells(header, "th")), make("tbody", {}, body.map((row) => cells(row, "td"))));
}
