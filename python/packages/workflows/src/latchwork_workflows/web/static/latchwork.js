// Live updates. Pages also work without this file, but then they do not update themselves.
// It uses htmx and no other library, no inline scripts and no files from other hosts.
"use strict";

(() => {
  const told = document.getElementById("live-state");
  const say = (text) => { if (told && told.textContent !== text) told.textContent = text; };

  // 1. When the topic of the page changes, load the page again and replace the parts that differ.
  const topic = document.body.dataset.live;
  let source = null, asking = false, again = false;

  async function refresh() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; }
      if (!answer.ok) { say(" This page could not be updated."); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-part]")) {
        const other = fresh.getElementById(part.id);
        if (!other || part.innerHTML === other.innerHTML || part.contains(document.activeElement)
            && document.activeElement.matches("input, textarea, select")) continue;
        const focused = part.contains(document.activeElement) ? document.activeElement : null;
        const key = focused && (focused.getAttribute("href") || focused.id || focused.value);
        part.innerHTML = other.innerHTML;
        htmx.process(part);
        if (key) {
          const same = [...part.querySelectorAll("a, button")].find(
            (each) => (each.getAttribute("href") || each.id || each.value) === key);
          if (same) same.focus({ preventScroll: true });
        }
      }
      say(" Live.");
    } catch { say(" Disconnected, reconnecting."); }
    finally {
      asking = false;
      if (again) { again = false; setTimeout(refresh, 300); }
    }
  }

  function listen() {
    if (!topic || source || document.hidden) return;
    source = new EventSource("/api/v1/events?topic=" + encodeURIComponent(topic));
    source.addEventListener("change", refresh);
    source.onopen = () => { say(" Live."); };
    source.onerror = () => {
      say(" Disconnected, reconnecting.");
      if (source.readyState === EventSource.CLOSED) { source = null; setTimeout(listen, 5000); }
    };
  }

  // A browser has few connections to one server, so a hidden page closes its connection.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) { source.close(); source = null; } }
    else if (topic) { listen(); refresh(); }
  });
  listen();

  // 2. Times that count up.
  const words = (s) => {
    s = Math.max(0, s);
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    if (s < 10) return s.toFixed(1) + " s";
    if (s < 60) return Math.floor(s) + " s";
    if (s < 3600) return Math.floor(s / 60) + " min " + two(s % 60) + " s";
    if (s < 86400) return Math.floor(s / 3600) + " h " + two(s % 3600 / 60) + " min";
    return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
  };
  setInterval(() => {
    if (document.hidden) return;
    for (const each of document.querySelectorAll("[data-since]")) {
      const text = words(Date.now() / 1000 - Number(each.dataset.since));
      if (each.textContent !== text) each.textContent = text;
    }
  }, 1000);

  // 3. Follow a log: as text, never as markup. The view stays at the end if it was there.
  const log = document.querySelector("[data-follow]");
  if (log) {
    const MOST = 4_000_000;
    let next = Number(log.dataset.next), stream = null;
    const open = () => {
      stream = new EventSource(log.dataset.follow + "?offset=" + next);
      stream.onmessage = (event) => {
        const part = JSON.parse(event.data);
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        next = part.next;
        log.append(part.text);
        if (log.textContent.length > MOST) log.textContent = log.textContent.slice(-MOST / 2);
        if (atEnd) log.scrollTop = log.scrollHeight;
      };
      stream.addEventListener("end", () => { stream.close(); say(" The log has ended."); refresh(); });
      stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) setTimeout(open, 5000); };
    };
    log.scrollTop = log.scrollHeight;
    open();
    window.addEventListener("pagehide", () => stream.close());
  }

  // 4. Confirmations, selections that submit a form, links to a line of the editor, and "/" for search.
  document.addEventListener("submit", (event) => {
    const question = event.submitter && event.submitter.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (event.target.closest("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-line]");
    const area = link && document.querySelector("textarea.code");
    if (!area) return;
    event.preventDefault();
    const lines = area.value.split("\n"), line = Number(link.dataset.line);
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(start, start + (lines[line - 1] || "").length);
    area.scrollTop = Math.max(0, (line - 5) * parseFloat(getComputedStyle(area).lineHeight));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey) return;
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  });
})();
