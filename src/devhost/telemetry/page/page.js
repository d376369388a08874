"use strict";
(() => {
  const SILENT = 45000; // three times the longest silence of a working stream
  const POLL = 5000; // while the page answers but the stream does not
  const LONGEST = 30000; // the longest pause between two attempts while nothing answers
  const ANNOUNCED = 6; // the maximum number of changes read out at a time

  const byId = (id) => document.getElementById(id);
  const lost = byId("lost");
  const mode = byId("mode");
  const build = byId("page").dataset.build;
  let ahead = 0; // milliseconds by which this clock is ahead of the node's clock
  let lostAt = null;
  let failures = 0;
  let stream = null;
  let silence = 0;
  let next = 0;

  /* ages, formatted like on the server */
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

  /* updates the page node by node, so that focus, open sections and selection are kept */
  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key : "") || "";
  const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const morph = (old, wanted) => {
    if ("own" in old.dataset) return; // the script fills it
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

  /* shows only the rows that have every word of the search field; in the part of a resource also by its name */
  const folded = new Map(); // parts of resources that the search has opened or closed, each with its state before
  const filter = () => {
    const field = byId("search");
    if (!field) return;
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.toLowerCase().includes(word));
    let all = 0;
    let shown = 0;
    for (const row of document.querySelectorAll("main tbody tr")) {
      const part = row.closest("details");
      row.hidden = !has(`${part ? part.dataset.name : ""} ${row.textContent}`);
      all += 1;
      if (!row.hidden) shown += 1;
    }
    const empty = (one) => words.length > 0 && !one.querySelector("tbody tr:not([hidden])");
    for (const one of document.querySelectorAll("main table")) one.hidden = empty(one);
    for (const one of document.querySelectorAll("main details")) {
      one.hidden = empty(one) && !has(one.dataset.name);
      if (words.length) {
        if (!folded.has(one)) folded.set(one, one.open);
        one.open = !one.hidden;
      } else if (folded.has(one)) one.open = folded.get(one);
    }
    if (!words.length) folded.clear();
    for (const one of document.querySelectorAll("main > section:not(.verdict)"))
      one.hidden = empty(one) && !one.querySelector("details:not([hidden])");
    const text = words.length ? `${shown} of ${all} rows` : "";
    if (byId("found").textContent !== text) byId("found").textContent = text;
  };

  /* announcements of changes for screen readers */
  const news = () => {
    const found = new Map();
    for (const one of document.querySelectorAll("[data-news]")) found.set(one.dataset.news, one);
    return found;
  };
  const snapshot = () => {
    const found = new Map();
    for (const [key, one] of news()) found.set(key, { text: one.dataset.announce, ended: one.dataset.ended });
    return found;
  };
  const announce = (lines) => {
    const area = byId("announcements");
    for (const line of lines.slice(0, ANNOUNCED)) {
      const paragraph = document.createElement("p");
      paragraph.textContent = line;
      area.append(paragraph);
    }
    if (lines.length > ANNOUNCED) area.lastChild.textContent += `, and ${lines.length - ANNOUNCED} more changes`;
    while (area.childElementCount > 3 * ANNOUNCED) area.firstChild.remove();
  };
  const announceChanges = (before) => {
    const lines = [];
    const now = news();
    for (const [key, one] of now) {
      if (before.get(key)?.text === one.dataset.announce) continue;
      lines.push(one.dataset.announce);
      one.classList.remove("changed");
      void one.offsetWidth; // restarts the animation
      one.classList.add("changed");
    }
    for (const [key, { ended }] of before) if (!now.has(key) && ended) lines.push(ended);
    announce(lines);
  };

  const show = (html) => {
    const wanted = new DOMParser().parseFromString(html, "text/html").getElementById("page");
    if (!wanted) throw new Error("not the status page");
    if (wanted.dataset.build !== build) return location.reload();
    const before = snapshot();
    const focused = document.activeElement;
    const inView = (one) => {
      const { top, bottom } = one.getBoundingClientRect();
      return one !== document.body && bottom > 0 && top < innerHeight;
    };
    const middle = () => document.elementFromPoint(innerWidth / 2, innerHeight / 2)?.closest("[data-key], [id]");
    const looked = focused && inView(focused) ? focused : middle();
    const top = looked?.getBoundingClientRect().top;
    morph(byId("page"), wanted);
    if (focused && focused !== document.activeElement && focused !== document.body)
      (focused.isConnected ? focused : byId("main")).focus({ preventScroll: true });
    document.title = byId("page").dataset.title;
    if (byId("icon").href !== byId("page").dataset.icon) byId("icon").href = byId("page").dataset.icon;
    setClock();
    refresh();
    filter();
    if (scrollY > 0 && looked?.isConnected) // rows above it may have come, gone or moved
      scrollBy({ top: looked.getBoundingClientRect().top - top, behavior: "instant" });
    announceChanges(before);
    if (lostAt !== null) announce(["connected again"]);
    lostAt = null;
    failures = 0;
    lost.hidden = true;
  };

  /* follows the stream; if none is free, polls its newest event every few seconds; if streams do not work, polls the
     page; if nothing answers, retries with growing pauses */
  const showMode = (text, slow) => {
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
      if (stream) return; // a stream was opened meanwhile
      show(html);
      showMode("every 5 s", true);
      later(POLL);
    } catch {
      if (stream) return;
      failures += 1;
      if (lostAt === null) {
        lostAt = new Date();
        const since = lostAt.toLocaleTimeString([], { hourCycle: "h23" });
        lost.textContent = `Connection lost since ${since}. The page shows the state at that time and reconnects by itself.`;
        lost.hidden = false;
        announce([`connection lost since ${since}`]);
      }
      showMode("", true);
      later(Math.min(1000 * 2 ** Math.min(failures - 1, 5), LONGEST));
    }
  };
  const ended = () => {
    clearTimeout(silence);
    stream?.close();
    stream = null;
    poll();
  };
  const awaitMessage = () => {
    clearTimeout(silence);
    silence = setTimeout(ended, SILENT);
  };
  const connect = () => {
    clearTimeout(next);
    stream?.close();
    stream = new EventSource("events");
    let again = 0; // milliseconds until the next poll; 0 for a stream that stays open
    stream.addEventListener("poll", (event) => { again = Number(event.data); });
    stream.onmessage = (event) => {
      show(event.data);
      showMode(again ? "every 5 s" : "live", again > 0);
      if (!again) return awaitMessage();
      clearTimeout(silence);
      stream.close();
      stream = null;
      clearTimeout(next);
      next = setTimeout(connect, again);
    };
    stream.onerror = ended;
    awaitMessage();
  };

  const named = () => {
    const fragment = location.hash.slice(1);
    try {
      return decodeURIComponent(fragment);
    } catch {
      return fragment; // it contains a percent sign that is not an escape
    }
  };
  const unfold = () => {
    const target = byId(named());
    if (!(target instanceof HTMLDetailsElement)) return;
    if (target.hidden) { // the user wants to see what the search leaves out
      byId("search").value = "";
      filter();
    }
    target.open = true;
  };
  document.addEventListener("input", (event) => { if (event.target.id === "search") filter(); });
  document.addEventListener("keydown", (event) => {
    const field = byId("search");
    if (!field || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && document.activeElement !== field) field.focus();
    else if (event.key === "Escape" && document.activeElement === field && field.value) field.value = "";
    else return;
    event.preventDefault();
    filter();
  });
  document.documentElement.classList.add("scripted");
  addEventListener("hashchange", unfold);
  addEventListener("online", () => { if (lostAt !== null) connect(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && lostAt !== null) connect(); });
  setInterval(refresh, 1000);
  setClock();
  filter();
  unfold();
  connect();
})();
