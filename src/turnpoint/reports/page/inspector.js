// Shading of tokens by a quantity, and what is known of the token under the pointer.

const SHADES = {
  hindsight: "change of log-probability in hindsight, nats", teacher: "d = log p of the teacher - log p of the policy, nats", entropy: "entropy, nats", surprisal: "surprisal (-logprob), nats",
  advantage: "advantage",
};

// The quantities that the open group has, those of SHADES first.
function shadesHere() {
  const names = view && view.tokens ? Object.keys(view.tokens.scales) : [];
  const known = Object.keys(SHADES).filter((name) => names.includes(name));
  return [...known, ...names.filter((name) => !known.includes(name))];
}

function shadeAll(wanted) {
  if (!view || !view.tokens) return;
  const here = shadesHere();
  view.shade = here.includes(wanted) || wanted === "none" ? wanted : here[0];
  const scale = view.tokens.scales[view.shade] || 0;
  const judged = view.shade === "teacher"; // few tokens have most of d: paler ones must still be seen
  document.getElementById("group").classList.toggle("judged", judged);
  for (const span of document.querySelectorAll("#group .t")) {
    const codes = view.tokens.members[span.member].codes[view.shade];
    const share = codes && scale ? strongest(placesOf(span).map((place) => codes[place])) : 0;
    span.classList.toggle("low", share < 0);
    span.classList.toggle("high", share > 0);
    span.style.setProperty("--a", (0.75 * (judged ? Math.abs(share) : share * share)).toFixed(3));
  }
  renderLegend();
}

// The share of the largest that a code stands for, of several the one furthest from zero.
function strongest(codes) {
  const shares = codes.map((code) => (code === NO_VALUE ? 0 : (code - ZERO) / ZERO));
  return shares.reduce((most, share) => (Math.abs(share) > Math.abs(most) ? share : most), 0);
}

function renderLegend() {
  const host = document.getElementById("legend");
  if (!host) return;
  const scale = view.tokens.scales[view.shade] || 0;
  const buttons = [...shadesHere(), "none"].map((name) =>
    make("button", { "aria-pressed": String(name === view.shade), title: SHADES[name] || name, "data-shade": name, onclick: () => act.set({ shade: name }) }, name));
  const from = view.shade === "surprisal" || view.shade === "entropy" ? "0" : `-${number(scale)}`;
  const ramp = view.shade === "none" ? null : make("span", { class: "ramp" }, make("i", {}, from),
    make("b", { class: from === "0" ? "half" : "" }), make("i", {}, number(scale)));
  const means = view.shade !== "teacher" || !view.texts.teacher ? null : make("span", { class: "quiet" },
    `nats: green is likelier to teacher ${visible(view.texts.teacher)} than to the policy, red less likely`);
  host.replaceChildren(make("span", { class: "quiet" }, "shade"), make("span", { class: "switch", role: "group", "aria-label": "shade" }, buttons), ramp, means);
}

function inspect(span) {
  const host = document.getElementById("inspector");
  if (view && view.cursor) view.cursor.classList.remove("at");
  if (!view || !span) {
    host.replaceChildren();
    return;
  }
  view.cursor = span;
  span.classList.add("at");
  const places = placesOf(span);
  const facts = places.flatMap((place) => tokenFacts(span.member, place));
  if (places.length > 1) facts.unshift(make("code", {}, `\u201c${span.textContent}\u201d`), make("span", {}, `${places.length} tokens`));
  host.replaceChildren(...facts);
}

function tokenFacts(member, place) {
  const mine = view.tokens.members[member];
  const number_ = mine.numbers[place];
  const part = partOf(number_);
  const text = part ? part.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("") : visible(tokenText(number_));
  const facts = [make("code", {}, `\u201c${text}\u201d`), make("span", {}, `id ${view.vocabulary.ids[number_]}`),
    make("span", {}, `${memberName(member)}, token ${place + 1}`)];
  for (const [name, codes] of Object.entries(mine.codes)) {
    const value = valueOf(codes[place], view.tokens.scales[name]);
    if (value === null) continue;
    if (name === "surprisal") facts.push(fact("logprob", number(-value)), fact("p", number(Math.exp(-value))));
    facts.push(fact(name, name === "surprisal" || name === "entropy" ? number(value) : signed(value)));
  }
  return facts;
}

const fact = (label, text) => make("span", {}, make("span", { class: "label" }, label), text);

// Moves the token cursor: by tokens, or to the next fork.
function moveCursor(by) {
  const all = [...document.querySelectorAll("#group .t")].filter((span) => span.checkVisibility());
  if (!all.length) return;
  const at = view.cursor ? all.indexOf(view.cursor) : -1;
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  inspect(next);
  next.scrollIntoView({ block: "nearest" });
}

function nextFork() {
  const all = [...document.querySelectorAll("#group .fork")];
  if (!all.length) return;
  const next = all[(all.indexOf(document.activeElement) + 1) % all.length];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "center" });
}
