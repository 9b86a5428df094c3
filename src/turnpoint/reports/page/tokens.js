// Tokens as text: each in a span of its own, but for those that spell one character together.

const MOST_PARTS = 12; // tokens that are tried as one

function tokenText(number) {
  const { ids, texts } = view.vocabulary;
  return texts ? texts[number] : ` ${ids[number]}`;
}

// The bytes of a token that is no whole text by itself; null for all others.
function partOf(number) {
  const hex = view.vocabulary.parts[number];
  return hex === undefined ? null : hex.match(/../g).map((byte) => parseInt(byte, 16));
}

// The text of bytes, null when they are none.
function wholeText(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

// The fewest tokens from `at` on, of those before `to`, that are a text together; null where no such are.
function joinedAt(numbers, at, to) {
  const bytes = [];
  for (let i = at; i < Math.min(to, at + MOST_PARTS); i++) {
    const part = partOf(numbers[i]);
    if (!part) return null;
    bytes.push(...part);
    const text = wholeText(bytes);
    if (text !== null) return { at, count: i - at + 1, text };
  }
  return null;
}

// Returns {at, count, text} for the tokens [from, to), in order.
function piecesOf(numbers, from, to) {
  const pieces = [];
  for (let at = from; at < to; at += pieces.at(-1).count) {
    pieces.push(joinedAt(numbers, at, to) || { at, count: 1, text: tokenText(numbers[at]) });
  }
  return pieces;
}

const textOf = (numbers) => piecesOf(numbers, 0, numbers.length).map((piece) => piece.text).join("");

function spans(index, from, to) {
  const { numbers } = view.tokens.members[index];
  return piecesOf(numbers, from, to).map(({ at, count, text }) => {
    const span = document.createElement("span");
    span.className = "t";
    span.textContent = visible(text).replaceAll(NEWLINE, `${NEWLINE}\n`) || "\u2205";
    Object.assign(span, { member: index, place: at, count });
    if (count > 1) span.title = `${count} tokens: ${placesOf(span).map((place) => `id ${view.vocabulary.ids[numbers[place]]}`).join(", ")}`;
    return span;
  });
}

// The places of the tokens that a span shows.
const placesOf = (span) => Array.from({ length: span.count }, (_, i) => span.place + i);
