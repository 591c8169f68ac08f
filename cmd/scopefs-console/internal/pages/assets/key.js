// Pairs this browser, or logs it in, by a key: a passkey, or one that the browser keeps and gives to no script.
const form = document.getElementById("key"), said = document.getElementById("said");
const root = form.dataset.root, pairs = form.dataset.do === "pair";
const buttons = { passkey: document.getElementById("passkey"), browser: document.getElementById("browser") };

async function post(path, body) {
  const answer = await fetch(root + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

const base64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)));

// The store of this origin has one key: {device, pair}.
function store(mode, use) {
  return new Promise((resolve, reject) => {
    const open = indexedDB.open("scopefs-console", 1);
    open.onupgradeneeded = () => open.result.createObjectStore("keys");
    open.onerror = () => reject(open.error);
    open.onsuccess = () => {
      const change = open.result.transaction("keys", mode), request = use(change.objectStore("keys"));
      change.oncomplete = () => { open.result.close(); resolve(request.result); };
      change.onerror = change.onabort = () => reject(change.error);
    };
  });
}

async function sign(pair, asked, device) {
  const text = `scopefs console: ${pairs ? "pair" : "log in"}\n${location.origin}\n${asked.id}\n${device}`;
  return base64(await crypto.subtle.sign({ name: "ECDSA", hash: "SHA-256" }, pair.privateKey, new TextEncoder().encode(text)));
}

const ways = {
  async passkey(asked) {
    const call = pairs ? ["parseCreationOptionsFromJSON", "create"] : ["parseRequestOptionsFromJSON", "get"];
    const credential = await navigator.credentials[call[1]]({ publicKey: PublicKeyCredential[call[0]](asked.passkey) });
    return { passkey: credential.toJSON() };
  },
  async browser(asked) {
    if (!pairs) {
      const { device, pair } = await store("readonly", (keys) => keys.get("key"));
      return { device, signature: await sign(pair, asked, device) };
    }
    const pair = await crypto.subtle.generateKey({ name: "ECDSA", namedCurve: "P-256" }, false, ["sign"]);
    await store("readwrite", (keys) => keys.put({ device: asked.device, pair }, "key"));
    return { key: base64(await crypto.subtle.exportKey("spki", pair.publicKey)), signature: await sign(pair, asked, asked.device) };
  },
};

async function prove(way) {
  for (const button of Object.values(buttons)) button.disabled = true;
  said.textContent = "";
  try {
    const path = pairs ? "/pair" : "/login";
    const asked = await post(path + "/begin", { token: form.dataset.token });
    const { next } = await post(path, { id: asked.id, ...await ways[way](asked) });
    location.replace(form.dataset.next || next);
  } catch (error) {
    said.textContent = error.name === "NotAllowedError" ? "Nothing was chosen." : error.message;
    for (const button of Object.values(buttons)) button.disabled = false;
  }
}

for (const [way, button] of Object.entries(buttons)) button.addEventListener("click", (event) => { event.preventDefault(); prove(way); });
form.addEventListener("submit", (event) => event.preventDefault());

// WebAuthn takes no address for a name, and the browser may lack it.
const named = !/^[\d.]+$|:|^\[/.test(location.hostname);
buttons.passkey.hidden = !(named && window.PublicKeyCredential?.parseCreationOptionsFromJSON);
if (!window.crypto?.subtle) {
  said.textContent = "This page has no keys: open it by https, or as localhost.";
} else if (pairs) {
  buttons.browser.hidden = false;
} else {
  store("readonly", (keys) => keys.get("key")).then((kept) => {
    if (!kept) return;
    buttons.browser.hidden = false;
    buttons.passkey.hidden = true;
    prove("browser");
  }, () => {});
}
