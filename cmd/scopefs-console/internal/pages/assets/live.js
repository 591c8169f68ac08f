// Keeps a page current. Every text goes into the page as text: the policy of the page refuses markup from scripts.
const body = document.body;
const lost = document.getElementById("lost");

function connected(yes, why) {
  lost.hidden = yes;
  lost.querySelector("span").textContent = why ? ": " + why : "";
}

function setCell(key, text) {
  for (const cell of document.querySelectorAll(`[data-cell="${CSS.escape(key)}"]`)) {
    if (cell.textContent !== text) cell.textContent = text;
  }
}

// A page that somebody fills in is not replaced.
function isBusy(main) {
  const at = document.activeElement;
  if (main.contains(at) && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) return true;
  for (const field of main.querySelectorAll("input, textarea, select")) {
    if (field.type === "hidden") continue;
    if (field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked
      : field.tagName !== "SELECT" && field.value !== field.defaultValue) return true;
  }
  return false;
}

let loading = false, again = false;

// Loads the page again and takes its content, with the focus, the scroll position and what is open.
function refresh() {
  const main = document.getElementById("main");
  if (loading) { again = true; return; }
  if (isBusy(main) || document.hidden) { again = true; return; }
  loading = true; again = false;
  const request = new XMLHttpRequest();
  request.open("GET", location.href);
  request.responseType = "document";
  request.setRequestHeader("Scopefs-Live", "1");
  request.timeout = 20000;
  request.onloadend = () => {
    setTimeout(() => { loading = false; if (again) refresh(); }, 1000);
    const fresh = request.response && request.response.getElementById("main");
    if (!fresh || request.status === 403) return;
    if (isBusy(main)) { again = true; return; }
    const focus = main.contains(document.activeElement) && document.activeElement.id;
    const link = !focus && main.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const open = new Set([...main.querySelectorAll("details[id][open]")].map((d) => d.id));
    const scrolls = [...main.querySelectorAll(".wide")].map((w) => w.scrollLeft);
    const notices = main.querySelectorAll(".notice"); // of a decision: until the operator goes on
    main.replaceChildren(...document.adoptNode(fresh).childNodes);
    main.querySelector("h1")?.after(...notices);
    if (fresh.dataset.follow) main.dataset.follow = fresh.dataset.follow;
    for (const d of main.querySelectorAll("details[id]")) if (open.has(d.id)) d.open = true;
    main.querySelectorAll(".wide").forEach((w, i) => { w.scrollLeft = scrolls[i] || 0; });
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    else if (link) main.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
    document.dispatchEvent(new CustomEvent("scopefs:refreshed"));
  };
  request.send();
}

function listen() {
  const stream = new EventSource(body.dataset.stream);
  let was = true;
  stream.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    connected(state.connected, state.why);
    setCell("waiting", String(state.waiting));
    for (const badge of document.querySelectorAll(".badge")) badge.hidden = state.waiting === 0;
    const follow = (document.getElementById("main").dataset.follow || "").split(" ");
    if (state.connected && (!was || (state.changed || []).some((what) => follow.includes(what)))) refresh();
    was = state.connected;
  });
  stream.addEventListener("cells", (event) => {
    for (const [key, text] of Object.entries(JSON.parse(event.data))) setCell(key, text);
  });
  stream.onerror = () => {
    was = false;
    connected(false, stream.readyState === EventSource.CLOSED ? "the console has ended, or you are no longer logged in: load the page again, or open a new link" : "the console does not answer");
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}
listen();
document.addEventListener("focusout", () => setTimeout(() => { if (again) refresh(); }));
document.addEventListener("visibilitychange", () => { if (!document.hidden && again) refresh(); });
