// What is wrong with this page for somebody who does not see it, sees little, has no mouse, or holds a phone.
// It is a function for Playwright's `evaluate`; the answer is a list of sentences.
() => {
  const wrong = [];
  const say = (what, each) => wrong.push(each ? `${what}: ${each.outerHTML.slice(0, 160)}` : what);
  const all = (chosen) => [...document.querySelectorAll(chosen)];
  const shown = (each) => each.checkVisibility({ checkOpacity: false, checkVisibilityCSS: true });
  const text = (each) => (each.textContent || "").trim();

  // Of a document
  if (document.documentElement.scrollWidth > window.innerWidth) {
    const wide = all("main *").find((each) => each.getBoundingClientRect().right > window.innerWidth + 1
      && !each.closest(".scroll, .canvas, pre, .unseen"));
    say(`it is ${document.documentElement.scrollWidth} wide in a window of ${window.innerWidth}`, wide);
  }
  if (!document.documentElement.lang || !document.title.trim()) say("it has no language, or no title");
  if (all("main").length !== 1 || all("h1").length !== 1) say("it has not one main part, with one heading");
  let before = 1;
  for (const each of all("h1, h2, h3, h4")) {
    const level = Number(each.tagName[1]);
    if (level > before + 1) say("a heading leaves a level out", each);
    before = level;
  }
  const ids = all("[id]").map((each) => each.id);
  for (const each of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) say(`two have the id ${each}`);

  // Of names
  const named = (each) => each.getAttribute("aria-label") || text(each) || each.querySelector("title, [aria-label]")
    || (each.getAttribute("aria-labelledby") || "").split(" ").some((id) => document.getElementById(id))
    || (each.labels && [...each.labels].some(text));
  const fields = "input:not([type=hidden]), select, textarea";
  for (const each of all(fields)) if (!each.getAttribute("aria-label") && !(each.labels && [...each.labels].some(text)))
    say("a field has no label", each);
  for (const each of all("a[href], button, summary, [role=region], [role=group], svg[role=img]"))
    if (!named(each)) say("it has no name", each);
  for (const each of all("nav, table.grid")) if (each.tagName === "NAV" && !named(each)) say("it has no name", each);
  for (const each of all("th")) if (!text(each)) say("a column has no heading", each);
  for (const each of all("label[for]")) if (!document.getElementById(each.htmlFor)) say("a label of nothing", each);
  for (const each of all("[aria-labelledby]")) if (!document.getElementById(each.getAttribute("aria-labelledby")))
    say("it is named by nothing", each);
  for (const each of all(".canvas, .scroll, pre.log, .diff")) {
    const scrolls = each.scrollHeight > each.clientHeight + 1 || each.scrollWidth > each.clientWidth + 1;
    if (scrolls && each.tabIndex < 0 && !each.querySelector("a[href], button")) say("it scrolls by mouse alone", each);
  }

  // Of contrast: 4.5 to 1, and 3 to 1 for large text
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colours = new Map();
  const rgba = (colour) => {
    if (!colours.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      colours.set(colour, canvas.getImageData(0, 0, 1, 1).data);
    }
    return colours.get(colour);
  };
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (each) => {
    const node = each.closest && each.closest(".node, .bar");
    const rect = each.tagName === "text" && node && node.querySelector("rect");
    if (rect) return rgba(getComputedStyle(rect).fill);
    for (let at = each; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return rgba("white");
  };
  const seen = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const each = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || seen.has(each) || !shown(each)) continue;
    seen.add(each);
    if (["SCRIPT", "STYLE", "OPTION", "TITLE"].includes(each.tagName) || each.closest(".unseen")) continue;
    const style = getComputedStyle(each), size = parseFloat(style.fontSize);
    const ink = light(rgba(each.tagName === "text" ? style.fill : style.color)), paper = light(behind(each));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < least - 0.01) say(`a contrast of ${ratio.toFixed(2)}`, each);
  }
  return [...new Set(wrong)];
}
