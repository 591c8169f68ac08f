// Subscribes this device to pushes that say that something waits, and no more. What shows them is worker.js.
const never = new Promise((_, no) => { setTimeout(() => no(new Error("the worker does not start: the browser must trust the certificate")), 20000); });
never.catch(() => {});

async function endpoint(form, on) {
  const worker = await Promise.race([navigator.serviceWorker.ready, never]);
  await (await worker.pushManager.getSubscription())?.unsubscribe(); // it may be for another key
  if (!on) return "";
  if (await Notification.requestPermission() !== "granted") throw new Error("the browser allows this page no notifications: see its settings");
  return (await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: form.dataset.key })).endpoint;
}

document.addEventListener("submit", async (event) => {
  const form = event.target, button = event.submitter;
  if (form.id !== "push" || form.elements.endpoint.value || !navigator.serviceWorker) return;
  event.preventDefault();
  try {
    form.elements.endpoint.value = await endpoint(form, button.value === "on") || "none";
    form.requestSubmit(button);
  } catch (error) {
    form.querySelector("[role=status]").textContent = "Not done: " + error.message;
  }
});
