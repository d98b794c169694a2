// The page works without this file. With it, the live region of a page is fetched again when the server reports a
// change of its content, and nothing that is open, focused or about to be clicked moves away.
(function () {
  "use strict";
  const body = document.body;
  const guardTime = 400; // ms after a change in which a click may have been meant for the previous content
  let source = null;
  let missed = false; // the connection was lost, so changes may have been missed
  let retry = 0;
  let changes = []; // where the buttons of the live region were before each change of the last guardTime ms
  let lastPage = ""; // the page that was fetched last

  const live = () => document.getElementById("live");

  // showState shows the state of the event stream.
  function showState(text) {
    const el = document.getElementById("stream");
    if (!el || el.textContent === text) return;
    el.textContent = text;
    el.hidden = text === "";
    el.className = text === "Live" ? "stream on" : "stream";
  }

  // refresh fetches the live region if it shows one of the topics, or if topics is null. During a fetch, htmx lets
  // the next fetch wait. This works because a swap replaces the content of the region, not its element.
  function refresh(topics) {
    const el = live();
    if (!el || !el.dataset.topics || !window.htmx) return;
    const shown = el.dataset.topics.trim().split(" ");
    if (topics && !topics.some((t) => t === "reset" || shown.includes(t))) return;
    window.htmx.trigger(el, "refresh");
  }

  // isNotifier is true in the one tab that holds the lock. That tab notifies the owner, and stays connected while hidden.
  let isNotifier = false;
  const mayNotify = () => window.Notification?.permission === "granted" && localStorage.getItem("notify") === "yes";
  let lastCount = NaN; // how many items waited at the last count
  // recount updates the counts in the navigation on a page that does not show what changed.
  async function recount(topics) {
    const counted = topics.filter((t) => t === "approvals" || t === "inbox" || t === "reset");
    const shown = live()?.dataset.topics?.split(" ") ?? [];
    if (!counted.length || (!isNotifier && counted.every((t) => shown.includes(t)))) return; // the refresh counts too
    const page = new DOMParser().parseFromString(await (await fetch(body.dataset.events.replace(/events$/, ""))).text(), "text/html");
    for (const a of page.querySelectorAll("#nav a")) {
      const here = document.querySelector('#nav a[href="' + CSS.escape(a.getAttribute("href")) + '"]');
      here?.querySelector(".count")?.remove();
      const mark = a.querySelector(".count");
      if (here && mark) here.append(" ", mark);
    }
    count();
    const waiting = parseInt(document.querySelector("#nav .count")?.textContent ?? "0", 10);
    if (isNotifier && mayNotify() && document.hidden && waiting > lastCount) new Notification("agentmesh", { body: waiting + " waiting for you", tag: "agentmesh" });
    lastCount = waiting;
  }
  // waitToNotify makes this tab the notifier as soon as no other tab holds the lock.
  function waitToNotify() {
    if (!mayNotify() || !navigator.locks) return;
    navigator.locks.request("agentmesh-notify", () => {
      isNotifier = true;
      lastCount = parseInt(document.querySelector("#nav .count")?.textContent ?? "0", 10);
      connect();
      return new Promise(() => {}); // until the tab closes
    });
  }

  function connect() {
    clearTimeout(retry);
    if (source || (document.hidden && !isNotifier)) return;
    source = new EventSource(body.dataset.events);
    source.addEventListener("ready", () => {
      showState("Live");
      refresh(null); // fetch all changes that were missed
      if (missed) recount(["reset"]).catch(() => {});
      missed = false;
    });
    source.addEventListener("changed", (e) => {
      refresh(e.data.split(" "));
      recount(e.data.split(" ")).catch(() => {}); // the next event counts again
    });
    source.onerror = () => {
      missed = true;
      showState("Reconnecting …");
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        retry = setTimeout(connect, 3000);
      }
    };
  }

  function disconnect() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  if (body.dataset.events) {
    // A browser opens few connections to one server: a hidden tab keeps none.
    document.addEventListener("visibilitychange", () => (document.hidden && !isNotifier ? disconnect() : connect()));
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", connect);
    connect();
    waitToNotify();
  }

  // offer shows the button that turns notifications in this browser on or off.
  function offer() {
    const notify = document.getElementById("notify");
    if (!notify || !window.Notification || !navigator.locks) return;
    notify.hidden = false;
    notify.textContent = mayNotify() ? "Do not notify me in this browser" : "Notify me in this browser";
  }
  offer();
  document.addEventListener("click", async (e) => {
    if (e.target.id !== "notify") return;
    const want = !mayNotify();
    localStorage.setItem("notify", want ? "yes" : "no");
    if (want && (await Notification.requestPermission()) !== "granted") return showState("The browser does not allow it");
    if (want) waitToNotify();
    offer();
  });

  // Shortcuts work unless a field has the focus. "?" lists them, and they can be turned off.
  const keys = document.getElementById("keys");
  const off = document.getElementById("keys-off");
  if (keys) {
    document.getElementById("keys-close").addEventListener("click", () => keys.close());
    off.checked = localStorage.getItem("keys") === "off";
    off.addEventListener("change", () => localStorage.setItem("keys", off.checked ? "off" : "on"));
    document.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey || keys.open || e.target.closest("input, textarea, select")) return;
      if (e.key === "?") return keys.showModal();
      if (off.checked) return;
      const entry = /^[1-5]$/.test(e.key) && document.querySelectorAll("#nav a")[e.key - 1];
      if (entry) entry.click();
      if (e.key === "w") location.assign(new URL("compose", new URL(body.dataset.events, location)));
      const search = e.key === "/" && document.querySelector("input[type=search]");
      if (search) {
        e.preventDefault();
        search.focus();
      } else if (e.key === "/") {
        location.assign(new URL("discover", new URL(body.dataset.events, location)));
      }
    });
  }

  // On a phone the navigation is one line that scrolls; reveal scrolls the current entry into view, beside the first
  // entry, which stays.
  function reveal() {
    const here = document.querySelector("#nav [aria-current]");
    const list = here?.closest("ul");
    if (here) list.scrollLeft = here.offsetLeft - list.firstElementChild.offsetWidth - 24;
  }
  reveal();

  // age updates the times that are shown relative to now.
  function age() {
    for (const t of document.querySelectorAll("time[datetime]")) {
      if (!/^(just now|\d+ (min|h) ago)$/.test(t.textContent)) continue;
      const minutes = Math.floor((Date.now() - Date.parse(t.dateTime)) / 60000);
      if (minutes >= 720) continue; // the next load shows the day
      t.textContent = minutes < 1 ? "just now" : minutes < 60 ? minutes + " min ago" : Math.floor(minutes / 60) + " h ago";
    }
  }
  setInterval(age, 30000);

  // count shows in the title of the tab how many items wait.
  function count() {
    const waiting = document.querySelector("#nav .count")?.textContent;
    document.title = (waiting ? "(" + waiting + ") " : "") + document.title.replace(/^\(\d+\+?\) /, "");
  }

  // isShown reports whether a fetched page has the same content as this page.
  function isShown(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    // Elements are compared, because a swap drops the white space between them.
    const inside = (doc, id) => Array.from(doc.getElementById(id)?.children ?? [], (e) => e.outerHTML).join("");
    return ["live", "nav"].every((id) => inside(page, id) === inside(document, id));
  }

  let open = []; // ids of the open details, which a swap would close
  let chosen = []; // ids of the chosen radio buttons, which a swap would reset
  let wasAtEnd = false; // of a chat
  let before = new Set(); // the entries that were shown; a new one stands out, except in a chat, where it is the last
  const entries = ".list > li, article.card";
  const keyOf = (e) => e.querySelector("h2[id], details[id]")?.id ?? e.querySelector("a[href]")?.getAttribute("href");
  body.addEventListener("htmx:beforeSwap", (e) => {
    const text = e.detail.serverResponse;
    const same = text === lastPage || isShown(text);
    lastPage = text;
    if (e.detail.xhr.status !== 200 || same) {
      e.detail.shouldSwap = false;
      return;
    }
    open = Array.from(live().querySelectorAll("details[open][id]"), (d) => d.id);
    wasAtEnd = isAtEnd();
    before = new Set(Array.from(live().querySelectorAll(entries), keyOf));
    chosen = Array.from(live().querySelectorAll("input[type=radio][id]:checked"), (i) => i.id);
    const places = new Map();
    for (const b of live().querySelectorAll("button[id]")) places.set(b.id, b.getBoundingClientRect());
    changes = [...recent(), { at: performance.now(), places }];
  });
  body.addEventListener("htmx:afterSwap", () => {
    offer();
    for (const e of live().querySelectorAll(entries)) if (!before.has(keyOf(e))) e.classList.add("fresh");
    const change = changes.at(-1);
    if (change) change.at = performance.now(); // a slow machine takes long to show it
    reveal();
    count();
    for (const id of open) {
      const d = document.getElementById(id);
      if (d) d.open = true;
    }
    for (const id of chosen) {
      const i = document.getElementById(id);
      if (i) i.checked = true;
    }
    if (wasAtEnd) newest()?.scrollIntoView({ block: "end" });
  }, true);
  const recent = () => changes.filter((p) => performance.now() - p.at < guardTime);
  // A click is accepted if its button was at this place before every recent change. So the owner can decide even while
  // the list changes.
  document.addEventListener("click", (e) => {
    const button = e.detail > 0 && e.target.closest("#live button");
    const stood = ({ places }) => {
      const r = places.get(button.id);
      return r && e.clientX >= r.left && e.clientX <= r.right && e.clientY >= r.top && e.clientY <= r.bottom;
    };
    if (button && !recent().every(stood)) {
      e.preventDefault();
      e.stopPropagation();
    }
  }, true);

  // The first run suggests the time zone of the browser.
  const zone = document.querySelector("input[data-zone]");
  if (zone && !zone.value) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone;

  // In a chat, Enter sends and Shift+Enter breaks the line. A keyboard on a screen has no second key for it.
  document.addEventListener("keydown", (e) => {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing || !e.target.matches("[data-enter]") || matchMedia("(pointer: coarse)").matches) return;
    e.preventDefault();
    if (e.target.value.trim()) e.target.form.requestSubmit();
  });

  // A chat opens at its newest message, and stays there while messages arrive, unless the owner reads earlier ones.
  const newest = () => document.querySelector(".talk") && live().lastElementChild;
  const isAtEnd = () => newest()?.getBoundingClientRect().bottom <= innerHeight;
  if (!location.hash && !/[?&]after=/.test(location.search)) newest()?.scrollIntoView({ block: "end" });

  // At the public address the owner signs in, and confirms each form, with a passkey. The code after # that sets up a phone
  // is sent only in the body of a request.
  async function passkey(setup) {
    const send = async (path, data) => {
      const answer = await fetch("/owner/page/phone/" + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data) });
      if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? "It did not work.");
      return answer;
    };
    const { options, state } = await (await send("begin", { code: setup })).json();
    const key = options.publicKey;
    const made = setup
      ? await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(key) })
      : await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(key) });
    await send("finish", { state, code: setup, response: made.toJSON() });
  }
  const door = document.getElementById("passkey");
  if (door) {
    const setup = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    const use = document.getElementById("passkey-use");
    if (setup) {
      document.getElementById("passkey-text").textContent = "Make a passkey on this phone. From then on it opens the page of your agent.";
      use.textContent = "Set up this phone";
    }
    use.addEventListener("click", () => passkey(setup).then(() => location.assign(door.dataset.page), (err) => {
      const wrong = document.getElementById("passkey-wrong");
      wrong.textContent = err.message;
      wrong.hidden = false;
    }));
  } else if ("phone" in body.dataset) {
    document.addEventListener("submit", async (e) => {
      const form = e.target, button = e.submitter;
      if (form.method !== "post" || form.dataset.confirmed || form.action.endsWith("/phone/out")) return;
      e.preventDefault();
      e.stopImmediatePropagation();
      try {
        await passkey("");
        form.dataset.confirmed = "1";
        form.requestSubmit(button);
      } catch (err) {
        showState(err.message);
      }
    }, true);
  }

  // A form is sent once.
  document.addEventListener("submit", (e) => {
    if (e.target.dataset.sent) e.preventDefault();
    e.target.dataset.sent = "1";
  });
  addEventListener("pageshow", () => {
    for (const f of document.forms) {
      delete f.dataset.sent;
      delete f.dataset.confirmed;
    }
  });

  // Buttons that copy a text are hidden unless the browser lets pages write to the clipboard.
  if (navigator.clipboard) {
    for (const b of document.querySelectorAll("button[data-copy]")) {
      b.hidden = false;
      b.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(b.dataset.copy).textContent);
        b.textContent = "Copied";
        setTimeout(() => (b.textContent = "Copy"), 2000);
      });
    }
  }

  // A sign-in code after # never reaches a server or its log.
  const secret = document.getElementById("secret");
  if (secret && location.hash.length > 1) {
    secret.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname + location.search);
    secret.focus();
  }

  // Neither does the code in a link to join. The commands of that page need it.
  function fillCode() {
    const code = /^#([\w.~-]{1,128})$/.exec(location.hash);
    for (const e of document.querySelectorAll("[data-code]")) e.textContent = code ? code[1] : "CODE";
    const paste = document.getElementById("paste");
    if (paste) paste.hidden = !!code;
  }
  fillCode();
  addEventListener("hashchange", fillCode);
})();
