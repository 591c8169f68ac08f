// Keys of lists, and buttons that copy. The inbox has keys of its own.
const rows = () => [...document.querySelectorAll("main tbody tr, main summary")].map((r) => r.tagName === "SUMMARY" ? r : r.querySelector("a[href]")).filter(Boolean);

function move(by) {
  const all = rows();
  if (!all.length) return;
  const row = document.activeElement?.closest?.("main tbody tr, main summary");
  const at = row ? all.findIndex((r) => row.contains(r)) : -1;
  const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

if (!document.body.dataset.keys) document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  switch (event.key) {
    case "j": move(1); break;
    case "k": move(-1); break;
    case "?": { const keys = document.getElementById("keys"); if (keys) keys.open = !keys.open; break; }
    default: return;
  }
  event.preventDefault();
});

// Without a script there is nothing to press: the text can be selected.
function offer() {
  for (const text of document.querySelectorAll("main code.copy")) {
    if (text.nextElementSibling?.matches("button.copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy quiet";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy " + text.textContent);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
    });
    text.after(button);
  }
}
document.addEventListener("scopefs:refreshed", offer);
offer();
