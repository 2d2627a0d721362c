// Enhancements of the page: live updates, filtering while you type, keyboard, theme. Every page also works
// without them. Texts from runs enter the document as text only; nothing here parses them as markup.

const one = (selector, root = document) => root.querySelector(selector);
const every = (selector, root = document) => [...root.querySelectorAll(selector)];

// Theme --------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const theme = () => document.documentElement.dataset.theme ?? "auto";

function nameTheme() {
  one("#theme").textContent = `Theme: ${theme()}`;
}

// The choice is a cookie, so that the server sends the next page in the chosen theme.
function turnTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  const age = next === "auto" ? 0 : 31536000;
  document.cookie = `triage-theme=${next}; Path=${one(".brand").pathname}; Max-Age=${age}; SameSite=Strict`;
  nameTheme();
}

// Reloading ----------------------------------------------------------------------------------------

// XMLHttpRequest parses our page into a document that runs no scripts and loads nothing.
function load(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.response && request.status < 500 ? resolve(request.response) : reject(new Error(request.status)));
    request.onerror = () => reject(new Error("unreachable"));
    request.send();
  });
}

// True while somebody edits the part or has one of its dialogs open.
function inUse(part) {
  const fields = every("input, textarea, select, button", part);
  const touched = fields.some((field) => field.defaultValue !== undefined && field.value !== field.defaultValue);
  return touched || fields.includes(document.activeElement) || one("dialog[open]", part) !== null;
}

// Replaces a part with a newer one; open details stay open, and a link keeps the focus.
function renew(part, fresh) {
  const opened = every("details[open] > summary", part).map((summary) => summary.textContent);
  const href = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const alike = (root) => every("a", root).filter((link) => link.getAttribute("href") === href);
  const focused = alike(part).indexOf(document.activeElement);
  part.replaceWith(fresh);
  for (const summary of every("details > summary", fresh)) {
    if (opened.includes(summary.textContent)) summary.parentElement.open = true;
  }
  if (href) alike(fresh)[focused]?.focus({ preventScroll: true });
}

let turns = 0;
let newest = 0;

async function refresh(names, address = location.pathname + location.search) {
  const turn = ++turns;
  const fresh = await load(address);
  // An older page that arrives after a newer one would undo it.
  if (turn < newest) return refresh(names, address);
  newest = turn;
  for (const part of every("[data-refresh]")) {
    const other = one(`[data-refresh="${part.dataset.refresh}"]`, fresh);
    if (!other || (names && !names.includes(part.dataset.refresh)) || inUse(part)) continue;
    renew(part, document.adoptNode(other));
  }
  const [run, again] = [one("[data-seq]"), one("[data-seq]", fresh)];
  if (run && again) Object.assign(run.dataset, again.dataset);
  every("[data-filter]").forEach(filter);
}

const RETRY_MS = 2000;

// Does async work once, some time after the last call. Work that fails is tried again: the server may be back.
function later(work, after) {
  let timer;
  const start = (wait) => {
    clearTimeout(timer);
    timer = setTimeout(() => work().catch(() => start(RETRY_MS)), wait);
  };
  return () => start(typeof after === "function" ? after() : after);
}

// Live ---------------------------------------------------------------------------------------------

function said(live) {
  const mark = one("#live");
  mark.hidden = live === "";
  mark.classList.toggle("lost", live !== "live" && live !== "");
  if (mark.textContent !== live) mark.textContent = live;
}

// A hidden tab closes its connection: a browser allows few of them per server.
function follow(address, told) {
  let source = null;
  const close = () => { source?.close(); source = null; };
  const open = () => {
    if (document.hidden || source) return;
    source = new EventSource(address());
    source.onopen = () => said("live");
    source.onerror = () => {
      said("connecting");
      if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
    };
    for (const [name, work] of Object.entries(told)) {
      source.addEventListener(name, (event) => { said("live"); work(JSON.parse(event.data)); });
    }
    source.addEventListener("trouble", (event) => said(JSON.parse(event.data).text));
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

function fill(part, values) {
  for (const field of every("[data-field]", part)) {
    const value = values[field.dataset.field];
    if (value !== undefined) field.textContent = value;
  }
  return part;
}

function entry(told) {
  const item = fill(one("#entry").content.cloneNode(true), told).firstElementChild;
  item.id = `e${told.seq}`;
  item.className = `${told.tone}${["failed", "attempt", "end", "waits"].includes(told.kind) ? " strong" : ""}`;
  const link = one("a", item);
  link.setAttribute("href", link.getAttribute("href").replace(/\d+$/, told.seq));
  if (!told.result) one("q", item).remove();
  return item;
}

const MOST_ENTRIES = 600;

function followRun(article) {
  const again = later(() => refresh(["head", "ask", "why", "attempts", "plan", "result"]), () => 150 + 500 * Math.random());
  const anew = later(() => refresh(null), () => 300 * Math.random());
  follow(() => `${article.dataset.live}?after=${article.dataset.seq}`, {
    stale: anew,
    news: (news) => {
      article.dataset.seq = news.seq;
      fill(one(".figures"), news.figures);
      const list = one("#events");
      const atEnd = article.dataset.page === article.dataset.pages;
      for (const told of atEnd ? news.entries : []) {
        const item = entry(told);
        const known = document.getElementById(item.id);
        if (known) { known.replaceWith(item); continue; }
        if (told.idle) {
          const idle = document.createElement("li");
          idle.className = "idle";
          idle.textContent = `${told.idle} idle`;
          list.append(idle);
        }
        item.classList.add("new");
        list.append(item);
      }
      while (list.children.length > MOST_ENTRIES) list.firstElementChild.remove();
      every("[data-filter]").forEach(filter);
      if (news.refresh) again();
    },
  });
}

function followRuns(list) {
  const order = (row) => Number(one("time", row).dataset.began);
  const anew = later(() => refresh(["list"]), () => 300 + 700 * Math.random());
  follow(() => list.dataset.live, {
    stale: anew,
    rows: (rows) => {
      const body = one("#runs");
      if (!body) { anew(); return; }
      for (const told of rows) {
        const known = every("tr", body).find((row) => row.dataset.run === told.slug);
        if (!known && one("#list").dataset.first !== "yes") continue;
        const row = fill(one("#row").content.cloneNode(true), told).firstElementChild;
        row.dataset.run = told.slug;
        row.className = known?.classList.contains("here") ? `${told.status} here` : told.status;
        one(".badge", row).className = `badge s-${told.status}`;
        const link = one("a", row);
        link.setAttribute("href", `${link.getAttribute("href")}${told.slug}`);
        one("time", row).dataset.began = told.began;
        if (known) known.replaceWith(row);
        else body.insertBefore(row, every("tr", body).find((other) => order(other) <= told.began) ?? null);
      }
      ages();
    },
  });
}

// Ages ---------------------------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function ages() {
  for (const time of every("time[data-began]")) {
    const seconds = Math.max(0, Date.now() / 1000 - Number(time.dataset.began));
    const [size, unit] = UNITS.find(([each]) => seconds >= 2 * each) ?? UNITS.at(-1);
    time.textContent = `${Math.floor(seconds / size)} ${unit}`;
  }
}

// Filter -------------------------------------------------------------------------------------------

function filter(field) {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of every(field.dataset.filter)) {
    const text = `${item.textContent} ${item.className}`.toLowerCase();
    item.hidden = words.some((word) => !text.includes(word));
  }
}

function searchAsTyped(form) {
  const asked = () => {
    const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    return `${form.getAttribute("action")}${given.size ? `?${given}` : ""}`;
  };
  const search = later(async () => {
    const address = asked();
    await refresh(["list"], address);
    history.replaceState(null, "", address);
  }, 200);
  form.addEventListener("input", search);
  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
}

// Keyboard -----------------------------------------------------------------------------------------

const KEYS = [
  ["j, k", "next, previous line"], ["Enter", "open the line"], ["u", "up: to the run, or the list"],
  ["[, ]", "earlier, later page"], ["/", "search or filter"], ["a", "attempts side by side"],
  ["t", "theme"], ["?", "these keys"],
];

function move(by) {
  const lines = every("#runs > tr, #events > li:not(.idle)").filter((line) => !line.hidden);
  if (!lines.length) return;
  const now = lines.findIndex((line) => line.classList.contains("here"));
  const next = lines[Math.min(lines.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : lines.length - 1) : now + by))];
  lines[now]?.classList.remove("here");
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
  one("a", next).focus({ preventScroll: true });
}

function showKeys() {
  const dialog = document.createElement("dialog");
  const title = document.createElement("h2");
  title.textContent = "Keys";
  title.id = "keys-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const list = document.createElement("dl");
  for (const [key, what] of KEYS) {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    text.textContent = what;
    list.append(term, text);
  }
  const close = Object.assign(document.createElement("button"), { textContent: "Close", type: "button" });
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(title, list, close);
  document.body.append(dialog);
  dialog.showModal();
}

const open = (selector) => one(selector)?.click();
const PRESSED = {
  j: () => move(1),
  k: () => move(-1),
  u: () => open(".crumb a:last-child"),
  a: () => open("a.more"),
  t: turnTheme,
  "[": () => open('a[rel="prev"]'),
  "]": () => open('a[rel="next"]'),
  "/": () => one('input[type="search"]')?.focus(),
  "?": showKeys,
};

addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input, textarea, select, dialog[open]");
  if (event.key === "Escape" && field) field.blur();
  if (field || event.ctrlKey || event.metaKey || event.altKey || !PRESSED[event.key]) return;
  event.preventDefault();
  PRESSED[event.key]();
});

// Setup --------------------------------------------------------------------------------------------

nameTheme();
for (const [id, work] of [["#theme", turnTheme], ["#keys", showKeys]]) {
  one(id).hidden = false;
  one(id).addEventListener("click", work);
}
for (const field of every("[data-filter]")) {
  field.closest("[hidden]")?.removeAttribute("hidden");
  field.addEventListener("input", () => filter(field));
}
const [search, run, list] = [one("#search"), one("article[data-live]"), one("#list")];
if (search) searchAsTyped(search);
if (run?.dataset.open === "yes") followRun(run);
if (list) followRuns(list);
ages();
setInterval(ages, 10000);
document.documentElement.dataset.ready = "yes";
