"use strict";
(() => {
  const SILENT = 45000; // three times what the stream keeps silent at most
  const POLL = 5000; // while the page is there and the stream is not
  const LONGEST = 30000; // between two attempts while nothing answers
  const SPOKEN = 6; // changes that are read out at one time

  const byId = (id) => document.getElementById(id);
  const lost = byId("lost");
  const mode = byId("mode");
  const build = byId("page").dataset.build;
  let ahead = 0; // milliseconds by which this clock is ahead of the node's
  let lostAt = null;
  let failures = 0;
  let stream = null;
  let silence = 0;
  let next = 0;

  /* ages, in the words of the server */
  const age = (time) => {
    const seconds = Math.max(Math.floor((Date.now() - ahead - Date.parse(time)) / 1000), 0);
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]])
      if (seconds >= 2 * length) return `${Math.floor(seconds / length)}${unit}`;
    return `${seconds}s`;
  };
  const refresh = () => {
    for (const one of document.querySelectorAll("#page time")) {
      const text = age(one.dateTime);
      if (one.textContent !== text) one.textContent = text;
    }
  };
  const setClock = () => {
    ahead = Date.now() - Date.parse(document.querySelector("[data-now]").dataset.now);
  };

  /* what is there becomes what it should be, node by node, so that focus, folds and selection stay */
  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key : "") || "";
  const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const morph = (old, wanted) => {
    for (const { name, value } of wanted.attributes)
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes])
      if (name !== "open" && !wanted.hasAttribute(name)) old.removeAttribute(name);
    const kept = new Set([...wanted.childNodes].map(keyOf));
    for (const child of [...old.childNodes]) if (!kept.has(keyOf(child))) child.remove();
    let place = old.firstChild;
    for (const child of [...wanted.childNodes]) {
      const key = keyOf(child);
      let found = place;
      if (key) while (found && !alike(found, child)) found = found.nextSibling;
      if (!found || !alike(found, child)) {
        old.insertBefore(child, place);
        continue;
      }
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      if (found.nodeType === Node.ELEMENT_NODE) morph(found, child);
      else if (found.nodeValue !== child.nodeValue) found.nodeValue = child.nodeValue;
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  };

  /* changes of state, in words */
  const news = () => {
    const found = new Map();
    for (const one of document.querySelectorAll("[data-news]")) found.set(one.dataset.news, one);
    return found;
  };
  const said = () => {
    const found = new Map();
    for (const [key, one] of news()) found.set(key, { say: one.dataset.say, over: one.dataset.over });
    return found;
  };
  const announce = (lines) => {
    const area = byId("announcements");
    for (const line of lines.slice(0, SPOKEN)) {
      const paragraph = document.createElement("p");
      paragraph.textContent = line;
      area.append(paragraph);
    }
    if (lines.length > SPOKEN) area.lastChild.textContent += `, and ${lines.length - SPOKEN} more changes`;
    while (area.childElementCount > 3 * SPOKEN) area.firstChild.remove();
  };
  const tell = (before) => {
    const lines = [];
    const now = news();
    for (const [key, one] of now) {
      if (before.get(key)?.say === one.dataset.say) continue;
      lines.push(one.dataset.say);
      one.classList.remove("changed");
      void one.offsetWidth; // begins the animation anew
      one.classList.add("changed");
    }
    for (const [key, { over }] of before) if (!now.has(key) && over) lines.push(over);
    announce(lines);
  };

  const show = (html) => {
    const wanted = new DOMParser().parseFromString(html, "text/html").getElementById("page");
    if (!wanted) throw new Error("this is not the page");
    if (wanted.dataset.build !== build) return location.reload();
    const before = said();
    const focused = document.activeElement;
    morph(byId("page"), wanted);
    if (focused && focused !== document.activeElement && focused !== document.body)
      (focused.isConnected ? focused : byId("main")).focus({ preventScroll: true });
    document.title = byId("page").dataset.title;
    if (byId("icon").href !== byId("page").dataset.icon) byId("icon").href = byId("page").dataset.icon;
    setClock();
    refresh();
    tell(before);
    if (lostAt !== null) announce(["connected again"]);
    lostAt = null;
    failures = 0;
    lost.hidden = true;
  };

  /* the stream; while none is free, its newest event every few seconds; where streams do not get through, the page
     itself; without that, ever more rarely */
  const says = (text, slow) => {
    mode.hidden = !text;
    if (mode.textContent !== text) mode.textContent = text;
    mode.classList.toggle("slow", slow);
  };
  const later = (milliseconds) => {
    clearTimeout(next);
    next = setTimeout(connect, milliseconds * (0.75 + Math.random() / 2));
  };
  const poll = async () => {
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(POLL) });
      if (!answer.ok) throw new Error(answer.statusText);
      const html = await answer.text();
      if (stream) return; // meanwhile there is one again
      show(html);
      says("every 5 s", true);
      later(POLL);
    } catch {
      if (stream) return;
      failures += 1;
      if (lostAt === null) {
        lostAt = new Date();
        const since = lostAt.toLocaleTimeString([], { hourCycle: "h23" });
        lost.textContent = `Connection lost since ${since}. This is what was known then; the page goes on by itself.`;
        lost.hidden = false;
        announce([`connection lost since ${since}`]);
      }
      says("", true);
      later(Math.min(1000 * 2 ** Math.min(failures - 1, 5), LONGEST));
    }
  };
  const ended = () => {
    clearTimeout(silence);
    stream?.close();
    stream = null;
    poll();
  };
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(ended, SILENT);
  };
  const connect = () => {
    clearTimeout(next);
    stream?.close();
    stream = new EventSource("events");
    let again = 0; // milliseconds after which to ask again; 0 for a stream that stays open
    stream.addEventListener("poll", (event) => { again = Number(event.data); });
    stream.onmessage = (event) => {
      show(event.data);
      says(again ? "every 5 s" : "live", again > 0);
      if (!again) return heard();
      clearTimeout(silence);
      stream.close();
      stream = null;
      clearTimeout(next);
      next = setTimeout(connect, again);
    };
    stream.onerror = ended;
    heard();
  };

  const named = () => {
    const fragment = location.hash.slice(1);
    try {
      return decodeURIComponent(fragment);
    } catch {
      return fragment; // a percent sign in it escapes nothing
    }
  };
  const unfold = () => {
    const target = byId(named());
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", unfold);
  addEventListener("online", () => { if (lostAt !== null) connect(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && lostAt !== null) connect(); });
  setInterval(refresh, 1000);
  setClock();
  unfold();
  connect();
})();
