// Keys of the inbox. A key decides about the request that has the focus. Neither a key nor a click decides right after the
// page has changed: an agent could put another request in the place of the one that was meant.
const settle = 700; // ms in which a key or a click was meant for what was there before
let since = performance.now();
document.addEventListener("scopefs:refreshed", () => { since = performance.now(); select(); });

const items = () => [...document.querySelectorAll("main article")];
const current = () => document.activeElement?.closest?.("main article");

function move(by) {
  const all = items();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  since = Math.max(since, performance.now() - settle + 150);
}

// A request whose end is not in view is shown first: it may go on below.
function approve(item) {
  const button = item.querySelector("button.once"), at = button.getBoundingClientRect();
  if (at.top >= 0 && at.bottom <= innerHeight + 4) { button.click(); return; }
  button.scrollIntoView({ block: "nearest" });
  since = performance.now();
}

document.addEventListener("click", (event) => {
  if (event.isTrusted && event.detail > 0 && performance.now() - since < settle && event.target.closest("main button, main input[name=item]")) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);

// The buttons of the batch work when something is selected.
function select() {
  const some = document.querySelector("main article > header input:checked") !== null;
  for (const button of document.querySelectorAll("#batch button")) button.disabled = !some;
}
document.addEventListener("change", select);
select();

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const field = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (field) {
    if (event.key === "Escape") current()?.focus();
    return;
  }
  const item = current();
  switch (event.key) {
    case "j": move(1); break;
    case "k": move(-1); break;
    case "?": { const keys = document.getElementById("keys"); if (keys) keys.open = !keys.open; break; }
    case "x": if (item) { const box = item.querySelector("header input"); if (box) box.checked = !box.checked; select(); } break;
    case "a": if (item?.querySelector("button.once") && performance.now() - since > settle) approve(item); break;
    case "d": if (item) item.querySelector(".deny input[name=reason], .deny button")?.focus(); break;
    default: return;
  }
  event.preventDefault();
});
