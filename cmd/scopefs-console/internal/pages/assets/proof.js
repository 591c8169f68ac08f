// Checks that the line of this page is in the log: its RFC 6962 path must lead to the root that the log has signed.
const place = document.getElementById("proof");

const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const join = (...parts) => Uint8Array.from(parts.flatMap((p) => [...p]));
const hash = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", join(...parts)));
const node = (left, right) => hash([1], left, right);
const equal = (a, b) => a.length === b.length && a.every((v, i) => v === b[i]);

// RFC 9162, section 2.1.3.2.
async function rootOf(leaf, index, size, path) {
  let fn = index, sn = size - 1, r = leaf;
  for (const p of path) {
    if (sn === 0) throw new Error("the path is too long");
    if (fn % 2 === 1 || fn === sn) {
      r = await node(p, r);
      while (fn % 2 === 0 && fn !== 0) { fn = Math.floor(fn / 2); sn = Math.floor(sn / 2); }
    } else {
      r = await node(r, p);
    }
    fn = Math.floor(fn / 2); sn = Math.floor(sn / 2);
  }
  if (sn !== 0) throw new Error("the path is too short");
  return r;
}

// c2sp.org/tlog-checkpoint: the log's name, the number of lines, the root; then an empty line and signatures.
async function signedBy(head, key) {
  const [name, id, rest] = [key.split("+")[0], key.split("+")[1], bytesOf(key.split("+").slice(2).join("+"))];
  const end = head.indexOf("\n\n");
  const text = new TextEncoder().encode(head.slice(0, end + 1));
  const line = head.slice(end + 2).split("\n").find((l) => l.startsWith(`— ${name} `));
  if (!line) throw new Error("the head is not signed by the log's key");
  const signature = bytesOf(line.slice(`— ${name} `.length));
  const given = [...signature.slice(0, 4)].map((b) => b.toString(16).padStart(2, "0")).join("");
  if (given !== id) throw new Error("the head is signed by another key");
  let public_;
  try {
    public_ = await crypto.subtle.importKey("raw", rest.slice(1), { name: "Ed25519" }, false, ["verify"]);
  } catch {
    return null; // this browser has no Ed25519
  }
  return crypto.subtle.verify({ name: "Ed25519" }, public_, signature.slice(4), text);
}

// The tree hashes salted commitments in place of some values: see audit/tree/leaf.go.
async function sameLine(event, shown) {
  const urlBase64 = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const utf8 = (text) => new TextEncoder().encode(text);
  if (!event.line.endsWith("\n")) return event.line === shown; // it has no salt
  let line = event.line.slice(0, -1);
  for (const [field, { value, key }] of Object.entries(event.shown || {})) {
    const commitment = `,"${field}":"sha256:${urlBase64(await hash(bytesOf(key), utf8(`${field}\n${value}`)))}"`;
    if (line.split(commitment).length !== 2) return false;
    line = line.replace(commitment, () => `,"${field}":"${value}"`);
  }
  const salt = /,"salt":"([^"]*)"/.exec(shown);
  if (!salt) return false;
  return line.replace(`,"salted":"${urlBase64(await hash(utf8(`salt\n${salt[1]}`)))}"`, () => salt[0]) === shown;
}

// The log signs a head each second.
async function check(tries) {
  const answer = await fetch(place.dataset.proof, { headers: { "Scopefs-Live": "1" } });
  if (!answer.ok) {
    place.textContent = "No proof yet: " + (await answer.text());
    if (tries > 0) setTimeout(run, 2000, tries - 1);
    return;
  }
  const proof = await answer.json();
  const [event] = proof.events;
  const shown = document.getElementById("line").textContent;
  if (/ … \d+ more bytes$/.test(shown)) throw new Error("the line is too long to be shown whole: download the proof");
  if (!(await sameLine(event, shown))) throw new Error("the proof is of another line");
  const lines = proof.head.split("\n");
  const size = Number(lines[1]), root = bytesOf(lines[2]);
  if (!(event.index >= 0 && event.index < size)) throw new Error("the line is not below the head");
  const leaf = await hash([0], new TextEncoder().encode(event.line));
  if (!equal(await rootOf(leaf, event.index, size, (event.path || []).map(bytesOf)), root)) throw new Error("the path does not lead to the head");
  const signed = await signedBy(proof.head, proof.key.trim());
  if (signed === false) throw new Error("the signature of the head is wrong");
  place.className = "good";
  place.textContent = `Verified: line ${event.index + 1} of the ${size} lines that ${lines[0]} has signed` +
    (signed === null ? "; this browser cannot check the signature itself." : ". The key is the log's own: compare it with a copy from elsewhere.");
}

function run(tries) {
  check(tries).catch((error) => { place.className = "bad"; place.textContent = "Not verified: " + error.message; });
}
if (place) run(15);
