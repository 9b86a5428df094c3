// Text and numbers as people read them, and elements made of them; nothing is ever parsed as HTML.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const NEWLINE = "\u21b5";

// Writes out what would move, hide or break something: controls, directions, lone surrogates.
function visible(text, keepLines = false) {
  return text.replace(HIDDEN, (found) => {
    if (found === "\n") return keepLines ? "\n" : NEWLINE;
    if (found === "\t") return keepLines ? "\t" : "\\t";
    if (found === "\r") return "\\r";
    const code = found.codePointAt(0);
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : "\\U" + code.toString(16).padStart(8, "0");
  });
}

// make("p", {class: "a", onclick: f}, "text", child): strings become text, null is left out.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "none";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 100) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (size < 1e-4) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

const signed = (value) => (value === null ? "none" : (value > 0 ? "+" : "") + number(value));
const percent = (share) => (share === null ? "none" : `${(100 * share).toFixed(1)} %`);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds < 60) return `${number(Math.round(10 * seconds) / 10)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${letter}`;
  }
  return number(value);
}
