// The open group: each root with its tokens, cut where it forks, the continuations below the fork.

const LONG = 1600; // tokens of a stretch from which its middle waits for a click
const [HEAD_TOKENS, TAIL_TOKENS] = [1000, 200];
const FIRST_LOOK = 80; // tokens of a continuation that show at once

let view = null; // the open group: row, texts, tokens, vocabulary, spans in reading order

async function openGroup(data, state) {
  const host = document.getElementById("group");
  const row = state.group;
  if (row === null || !data.groups[row]) {
    view = null;
    host.replaceChildren(data.groups.length ? make("p", { class: "quiet" }, "Choose a group: click it, or press j.") : "");
    return;
  }
  const [texts, tokens] = await Promise.all([readTexts(row), readTokens(row)]);
  if (state.group !== row) return; // another one was opened meanwhile
  view = { row, group: data.groups[row], texts, tokens, vocabulary: data.vocabulary, spans: [], cursor: null };
  view.reasonsDiffer = texts !== null && new Set(texts.members.map((member) => member.reason)).size > 1;
  view.scale = texts && rewardScale([{ rewards: texts.members.map((member) => member.reward) }]);
  host.replaceChildren(...groupParts());
  host.scrollTop = 0;
  shadeAll(state.shade);
}

function groupParts() {
  const { group, texts, tokens } = view;
  const title = make("h2", {}, `group ${group.id}`, make("span", { class: "quiet" }, visible(group.task)));
  const parts = [title, problem(texts)];
  if (!texts) {
    parts.push(make("p", { class: "note" }, "The page had no room for this group's texts and tokens; rollouts.jsonl has them."));
    return parts;
  }
  if (!tokens) {
    parts.push(make("p", { class: "note" }, "The page had no room for this group's tokens; texts are shown without shading."));
  } else {
    parts.push(make("div", { id: "legend", class: "bar" }));
  }
  parts.push(strip());
  texts.members.forEach((member, index) => { if (!member.origin) parts.push(rollout(index)); });
  return parts;
}

function problem(texts) {
  if (!texts) return make("pre", { class: "text", dir: "auto" }, visible(view.group.question, true));
  const turns = texts.messages.map(([role, content]) =>
    make("div", { class: "message" }, texts.messages.length > 1 ? make("span", { class: "label" }, role) : null,
      make("pre", { class: "text", dir: "auto" }, visible(content, true))));
  const answer = make("p", { class: "answer" }, make("span", { class: "label" }, "answer"), visible(texts.answer));
  const seen = view.tokens && view.tokens.prompt.length
    ? folded(`prompt as the model saw it, ${plural(view.tokens.prompt.length, "token")}`, () =>
      make("pre", { class: "text" }, visible(textOf(view.tokens.prompt), true)))
    : null;
  const paid = Object.entries(texts.cost).map(([kind, count]) => `${kind} ${count.toLocaleString("en")}`).join(", ");
  return make("div", { class: "problem" }, turns, answer, seen, paid ? make("p", { class: "quiet" }, `tokens: ${paid}`) : null);
}

// A summary that makes its content when it is first opened.
function folded(summary, content, open = false) {
  const element = make("details", { open }, make("summary", {}, summary));
  const fill = () => { if (element.open && element.childElementCount === 1) element.append(content()); };
  element.addEventListener("toggle", fill);
  fill();
  return element;
}

// One button per rollout, roots and what continues them side by side.
function strip() {
  const { members } = view.texts;
  const buttons = members.map((member, index) =>
    make("button", { class: member.origin ? "chip branch" : "chip", style: rewardStyle(member),
      title: `${memberName(index)}: reward ${number(member.reward)}`,
      onclick: () => document.getElementById(`member-${index}`).scrollIntoView({ block: "center" }) }, number(member.reward)));
  return make("div", { class: "strip", "aria-label": "rewards" }, buttons);
}

// As strong as the reward is high within the group.
const rewardStyle = (member) => `--a:${member.reward === null ? 0 : view.scale(member.reward)}`;

function memberName(index) {
  const { members } = view.texts;
  const origin = members[index].origin;
  const before = members.slice(0, index).filter((it) => (it.origin ? origin && it.origin[0] === origin[0] : !origin)).length;
  if (origin) return `continuation ${before + 1}`;
  return members.some((it) => it.origin) ? `root ${before + 1}` : `rollout ${before + 1}`;
}

function rollout(index) {
  const member = view.texts.members[index];
  const body = view.tokens ? trunk(index) : plainText(index);
  return make("article", { class: member.origin ? "rollout branch" : "rollout", id: `member-${index}` }, headline(index), insight(member.insight), body,
    verdict(member));
}

function headline(index) {
  const member = view.texts.members[index];
  const facts = [
    make("strong", {}, memberName(index)),
    make("span", { class: "fact reward", style: rewardStyle(member) }, `reward ${number(member.reward)}`),
    member.advantage === null ? null : make("span", { class: "fact" }, `advantage ${signed(member.advantage)}`),
    member.d === null ? null : make("span", { class: "fact", title: "mean of log p of the teacher - log p of the policy, nats" }, `teacher ${signed(member.d)}`),
    make("span", { class: member.finish === "stop" ? "fact" : "fact cut" }, member.finish === "stop" ? "finished" : "cut off at the limit"),
    make("span", { class: "fact" }, plural(member.tokens, "token")),
  ];
  return make("header", {}, facts);
}

function verdict(member) {
  const lines = [];
  const line = (label, text, kind = "") => lines.push(make("p", { class: `verdict ${kind}`, dir: "auto" }, make("span", { class: "label" }, label), visible(text)));
  if (!member.valid) line("invalid", member.reason, "cut");
  else if (member.reason && view.reasonsDiffer) line("judged", member.reason);
  if (member.feedback) line("feedback", member.feedback);
  const parts = Object.entries(member.parts);
  if (parts.length) line("parts", parts.map(([name, value]) => `${name} ${number(value)}`).join(", "));
  return lines;
}

// What the rule saw in a root, and what the policy was told.
function insight(it) {
  if (!it) return null;
  const agrees = it.agrees === null ? "" : it.agrees ? "; the reflection agrees with the verifier" : "; the reflection contradicts the verifier";
  const summary = make("p", { class: "rule" }, `forks by ${it.rule}: ${it.found} of ${plural(it.asked, "point")}${agrees}`);
  const aside = it.set_aside ? make("p", { class: "note" }, `set aside: ${visible(it.set_aside)}`) : null;
  const text = (label, content) => (content ? folded(label, () => make("pre", { class: "text", dir: "auto" }, visible(content, true))) : null);
  return make("div", { class: "insight" }, summary, aside, text("reflection", it.reflection), text("what hindsight was told", it.hindsight));
}

function forksOf(index) {
  const forks = new Map(); // position -> members
  view.texts.members.forEach((member, other) => {
    if (!member.origin || member.origin[0] !== index) return;
    const position = member.origin[1];
    forks.set(position, [...(forks.get(position) || []), other]);
  });
  return [...forks].sort((a, b) => a[0] - b[0]);
}

function plainText(index) {
  const text = make("pre", { class: "text", dir: "auto" }, visible(view.texts.members[index].text, true));
  return [text, ...forksOf(index).map(([position, members], at) => fork(at, position, members))];
}

function trunk(index) {
  const mine = view.tokens.members[index];
  const places = sampledAt(mine);
  const parts = [];
  let from = 0;
  const forks = forksOf(index);
  forks.forEach(([position, members], at) => {
    const to = places[position] ?? mine.numbers.length;
    parts.push(stretch(index, from, to, from > 0), fork(at, position, members));
    from = to;
  });
  parts.push(stretch(index, from, mine.numbers.length, from > 0));
  const whole = make("div", { class: "trunk" }, parts);
  const origin = view.texts.members[index].origin;
  if (origin && !forks.length && mine.numbers.length > FIRST_LOOK) foldUp(whole);
  return whole;
}

function foldUp(whole) {
  whole.classList.add("folded");
  const button = make("button", { class: "more", onclick: () => { whole.classList.remove("folded"); button.remove(); } }, "whole text");
  whole.append(button);
}

function fork(at, position, members) {
  const [, , rule, score] = view.texts.members[members[0]].origin;
  const why = rule === "random" ? rule : `${rule} ${number(score)}`;
  return make("div", { class: "fork", tabindex: -1 },
    make("p", { class: "mark" }, `fork ${at + 1}`, make("span", { class: "quiet" }, `at token ${position + 1}, ${why}; ${plural(members.length, "continuation")}`)),
    members.map(rollout));
}

// Tokens [from, to) of a member; `forked` marks the first, which continuations sample anew.
function stretch(index, from, to, forked) {
  const element = make("div", { class: "tokens", dir: "auto" });
  if (to - from <= LONG) {
    element.append(...spans(index, from, to));
  } else {
    const [left, right] = [from + HEAD_TOKENS, to - TAIL_TOKENS];
    const more = make("button", { class: "more", onclick: () => {
      more.replaceWith(...spans(index, left, right));
      shadeAll(view.shade);
    } }, `${plural(right - left, "more token")}`);
    element.append(...spans(index, from, left), more, ...spans(index, right, to));
  }
  if (forked && element.firstChild) element.firstChild.classList.add("forked");
  return element;
}
