// The service worker of an installed console. It keeps the style, the icons and the page for when there is no connection, and
// no page of the daemon: it stores nothing after it was installed. Forms do not pass through it. A push says that something
// waits, whatever it has.
const name = "scopefs " + kept.offline;

addEventListener("install", (event) => event.waitUntil((async () => {
  await (await caches.open(name)).addAll(kept.assets);
  await skipWaiting();
})()));

addEventListener("activate", (event) => event.waitUntil((async () => {
  for (const other of await caches.keys()) if (other !== name) await caches.delete(other);
  await clients.claim();
})()));

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && request.mode === "navigate") {
    event.respondWith(fetch(request).catch(() => caches.match(kept.offline)));
  } else if (request.method === "GET" && kept.assets.includes(new URL(request.url).pathname)) {
    event.respondWith((async () => (await caches.match(request)) || fetch(request))());
  }
});

addEventListener("push", (event) => event.waitUntil(registration.showNotification("scopefs: a call waits", {
  tag: "waits", renotify: true, icon: kept.icon, badge: kept.icon,
})));

addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil((async () => {
    const open = (await clients.matchAll({ type: "window" })).find((client) => new URL(client.url).pathname === kept.inbox);
    return open ? open.focus() : clients.openWindow(kept.inbox);
  })());
});
