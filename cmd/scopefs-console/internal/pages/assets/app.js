// Lets a paired device install the console. The policy for trusted types makes one URL, which is fixed.
const root = document.body.dataset.root;
const worker = root + "/assets/worker.js";
const url = window.trustedTypes ? window.trustedTypes.createPolicy("worker", { createScriptURL: () => worker }).createScriptURL("") : worker;
navigator.serviceWorker?.register(url, { scope: root + "/" }).catch(() => {}); // a certificate that the browser does not trust has none
