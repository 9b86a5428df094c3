// Search: words in problems at once; in completions, prompts and reflections as these are unpacked, step after step.

const SEARCH_DELAY = 150; // ms after the last key
const SEARCH_DRAWN = 200; // ms between two looks at what was found so far
const SEARCH_BATCH = 16; // groups unpacked together
const plainTexts = new Map(); // row -> everything that is said in it, lower case; null: the page has no texts of it
let search = { q: "", found: new Set(), left: 0, missing: 0 };
let searchTimer = null;

const wordsOf = (q) => q.toLowerCase().split(/\s+/).filter(Boolean);
const rowText = (group) => `${group.id} ${group.task} ${group.question} ${group.answer}`.toLowerCase();

// Whether a group is to be shown for `q`: its row holds all words, or a search has found them in its texts.
function matches(group, row, q) {
  if (search.q === q && search.found.has(row)) return true;
  const text = rowText(group);
  return wordsOf(q).every((word) => text.includes(word));
}

async function saidIn(row) {
  if (!plainTexts.has(row)) {
    const bytes = await inflate(`texts-${row}`);
    plainTexts.set(row, bytes && everyText(parsed(bytes)).toLowerCase());
  }
  return plainTexts.get(row);
}

function everyText(texts) {
  const said = texts.members.map((it) => [it.text, it.reason, it.feedback, it.insight && it.insight.reflection, it.insight && it.insight.hindsight]);
  return [texts.messages.map(([, content]) => content), texts.answer, said].flat(2).filter(Boolean).join("\n");
}

// Searches all texts for `q`, those of the shown step first; a later search ends an earlier one.
function searchTexts(groups, step, q, changed, delay = SEARCH_DELAY) {
  clearTimeout(searchTimer);
  if (search.q === q) return; // done, or under way
  search = { q, found: new Set(), left: 0, missing: 0 };
  if (!wordsOf(q).length) return;
  search.left = groups.length;
  searchTimer = setTimeout(() => searchRows(search, groups, step, changed).catch(complain), delay);
}

async function searchRows(mine, groups, step, changed) {
  const words = wordsOf(mine.q);
  const rows = [...groups.keys()];
  const order = [...rows.filter((row) => groups[row].step === step), ...rows.filter((row) => groups[row].step !== step)];
  let drawn = performance.now();
  for (let at = 0; at < order.length; at += SEARCH_BATCH) {
    const batch = order.slice(at, at + SEARCH_BATCH);
    const said = await Promise.all(batch.map(saidIn));
    if (search !== mine) return;
    batch.forEach((row, i) => {
      const text = `${rowText(groups[row])}\n${said[i] ?? ""}`;
      if (words.every((word) => text.includes(word))) mine.found.add(row);
      if (said[i] === null) mine.missing += 1;
    });
    mine.left = order.length - at - batch.length;
    if (mine.left && performance.now() - drawn < SEARCH_DRAWN) continue;
    changed();
    await new Promise((next) => setTimeout(next)); // keys and pointer come first
    drawn = performance.now();
  }
}

// What is said of a search: how many groups match, here and elsewhere, and what was not looked at.
function searchStatus(groups, state, here) {
  const mine = search.q === state.q ? search : { found: new Set(), left: groups.length, missing: 0 };
  const all = groups.filter((group, row) => matches(group, row, state.q));
  const elsewhere = all.length - all.filter((group) => group.step === state.step).length;
  const parts = [`${plural(here, "group")} of this step ${here === 1 ? "matches" : "match"}`];
  if (elsewhere || mine.left) parts.push(`${plural(elsewhere, "group")} of other steps`);
  if (mine.left) parts.push(`${plural(mine.left, "group")} still to search`);
  if (mine.missing) parts.push(`of ${plural(mine.missing, "group")} only the problem is on this page`);
  return { text: `${parts.join(", ")}.`, steps: [...new Set(all.map((group) => group.step))] };
}
