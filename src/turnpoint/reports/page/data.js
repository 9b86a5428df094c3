// What the page carries: blobs of compressed JSON and bytes, read when they are looked at.

const NO_VALUE = 255;
const ZERO = 127;
const cache = new Map(); // the last blobs read, by name
const CACHED = 24;

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Returns the bytes of a blob, null when the page had no room for it.
async function inflate(name) {
  const element = document.getElementById(name);
  if (!element) return null;
  const stream = new Blob([bytesOf(element.textContent)]).stream();
  const plain = stream.pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

const parsed = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

async function remembered(name, read) {
  if (!cache.has(name)) {
    const bytes = await inflate(name);
    cache.set(name, bytes && read(bytes));
    if (cache.size > CACHED) cache.delete(cache.keys().next().value);
  }
  return cache.get(name);
}

const readOverview = async () => parsed(await inflate("overview"));
const readTexts = (row) => remembered(`texts-${row}`, parsed);
const readTokens = (row) => remembered(`tokens-${row}`, decodeTokens);

// A JSON header behind its length, the planes of all token numbers, then a byte per token and quantity.
function decodeTokens(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = parsed(bytes.subarray(4, 4 + length));
  const lengths = header.members.map((member) => member.runs.reduce((sum, run) => sum + run[1], 0));
  const total = lengths.reduce((sum, n) => sum + n, header.prompt);
  let at = 4 + length;
  const numbers = new Uint32Array(total);
  for (let shift = 0; shift < 24; shift += 8) {
    for (let i = 0; i < total; i++) numbers[i] |= bytes[at + i] << shift;
    at += total;
  }
  let from = header.prompt;
  const members = header.members.map((member, index) => {
    const n = lengths[index];
    const mine = { numbers: numbers.subarray(from, from + n), runs: member.runs, codes: {} };
    from += n;
    for (const name of member.quantities) {
      mine.codes[name] = bytes.subarray(at, at + n);
      at += n;
    }
    return mine;
  });
  return { prompt: numbers.subarray(0, header.prompt), scales: header.scales, members };
}

// The value behind a code; null for none.
function valueOf(code, scale) {
  if (code === NO_VALUE) return null;
  const share = (code - ZERO) / ZERO;
  return Math.sign(share) * share * share * scale;
}

// Marks which tokens of a member the policy sampled: forks are counted among these.
function sampledAt(member) {
  const places = [];
  let at = 0;
  for (const [author, n] of member.runs) {
    if (author === "policy") for (let i = 0; i < n; i++) places.push(at + i);
    at += n;
  }
  return places;
}
