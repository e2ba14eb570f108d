// Puts the page together: the head, the slider that drives all pictures, selecting, searching, keys.

let updates = [], playing = null, widths = "";

function headOfPage() {
  byId("title").textContent = line(D.text, 600) || `run ${D.run}`;
  const badge = byId("status");
  badge.textContent = D.status + (D.verified === true ? ", verified" : D.verified === false ? ", wrong" : "");
  badge.className = `badge ${D.status}`;
  const answer = clear(byId("answer"));
  if (D.answer) answer.append(el("b", {}, "Answer: "), line(D.answer, 1500));
  else if (D.failure) answer.append(el("span", { class: "bad" }, D.failure));
  clear(byId("notes"));
  for (const note of D.notes) byId("notes").append(el("li", {}, note));
}
function factsAt(t) {
  const sum = [0, 0, 0, 0];
  let running = 0, done = 0;
  for (const s of S) {
    tokensAt(s, t).forEach((n, k) => { sum[k] += n; });
    const state = stateAt(s, t);
    running += state === "running"; done += state === "done";
  }
  const over = t >= END, u = D.usage, prompt = over ? u.prompt : sum[0] + sum[1], cached = over ? u.cached : sum[0];
  const facts = [["time", `${secs(Math.min(t, D.seconds))} of ${secs(D.seconds)}`], ["steps", `${num(done)} done of ${num(S.length)}`], ["running", num(running)], ["generated", `${num(over ? u.completion : sum[2] + sum[3])} tokens`],
    ["read by nobody", `${num(over ? u.cancelled : sum[3])} tokens`], ["prompt", `${num(prompt)} tokens, ${prompt ? Math.round(100 * cached / prompt) : 0} % cached`], ["critical path", `${num(D.critical)} tokens`]];
  const list = byId("facts");
  if (!list.children.length) for (const [key] of facts) list.append(el("div", {}, el("dt", {}, key), el("dd", {}, "")));
  facts.forEach(([, value], k) => { list.children[k].lastChild.textContent = value; });
}

// -- time
function go(t, fromSlider) {
  view.t = Math.max(0, Math.min(END, t));
  if (!fromSlider) byId("slider").value = Math.round(2000 * view.t / END);
  clear(byId("now")).append(secs(view.t), el("span", {}, ` / ${secs(END)}`));
  byId("slider").setAttribute("aria-valuetext", secs(view.t));
  factsAt(view.t);
  updates.forEach((f) => f(view.t));
  if (view.sel >= 0 && view.live !== stateAt(S[view.sel], view.t)) select(view.sel, true);
}
function nextChange(by) {
  const near = END / 1900; // less cannot be seen
  const at = by > 0 ? changes.find((c) => c > view.t + near) : [...changes].reverse().find((c) => c < view.t - near);
  if (at !== undefined) go(at);
}
function play() {
  const button = byId("play");
  if (playing) { cancelAnimationFrame(playing); playing = null; button.textContent = "▶"; button.setAttribute("aria-label", "Play"); return; }
  if (view.t >= END) go(0);
  button.textContent = "❚❚";
  button.setAttribute("aria-label", "Pause");
  const whole = 8000, began = performance.now() - whole * view.t / END;
  const frame = (now) => {
    go(END * Math.min(1, (now - began) / whole));
    if (view.t >= END) { playing = 1; play(); } else playing = requestAnimationFrame(frame);
  };
  playing = requestAnimationFrame(frame);
}

// -- selecting and searching
function markOne(element, steps) {
  element.classList.toggle("sel", steps.some((s) => s.i === view.sel));
  element.classList.toggle("hit", view.hits.size > 0 && steps.some((s) => view.hits.has(s.i)));
}
function markAll() {
  const of = new Map();
  for (const [i, elements] of marked) for (const e of elements) { if (!of.has(e)) of.set(e, []); of.get(e).push(S[i]); }
  for (const [e, steps] of of) markOne(e, steps);
}
function select(i, quiet) {
  view.sel = i;
  view.live = i >= 0 ? stateAt(S[i], view.t) : "";
  if (i < 0) showNothing(); else showStep(S[i]);
  if (!quiet) { markAll(); updates.forEach((f) => f(view.t)); }
}
let haystack = null; // made when somebody searches
const textsOf = () => S.map((s) => [s.name, s.label, s.kind, s.tool, s.merge, reasonOf(s) || "", s.text, s.value || "", s.args || "", ...s.prompt.map((p) => p.text || ""), ...s.tries.map((a) => D.hosts[a.host].name)].join("\n").toLowerCase());
function search(words) {
  const wanted = words.trim().toLowerCase();
  if (wanted) haystack ??= textsOf();
  view.hits = new Set(wanted ? S.map((s) => s.i).filter((i) => haystack[i].includes(wanted)) : []);
  byId("found").textContent = wanted ? `${num(view.hits.size)} found` : "";
  markAll();
  updates.forEach((f) => f(view.t));
}
function nextHit() {
  const hits = [...view.hits];
  if (!hits.length) return;
  const next = hits.find((i) => i > view.sel) ?? hits[0];
  select(next);
  marked.get(next)?.[0].scrollIntoView({ block: "center", inline: "center" });
}

// -- drawing it all, again whenever the width or what is folded changes
function draw() {
  const inside = [...document.querySelectorAll(".picture")].map((p) => p.scrollLeft);
  marked = new Map();
  updates = [planPicture(), enginesPicture(), prefixesPicture(), branchesPicture(), votesPicture(), stopsPicture()];
  widths = String(document.querySelector(".pictures").clientWidth);
  document.querySelectorAll(".picture").forEach((p, k) => { p.scrollLeft = inside[k]; });
  markAll();
  go(view.t);
}
function clicked(target) {
  const found = target.closest("[data-step], [data-group], [data-part], #close");
  if (!found) return;
  if (found.id === "close") { select(-1); return; }
  if (found.hasAttribute("data-part")) { view.sel = -1; markAll(); showPart(Number(found.getAttribute("data-part"))); return; }
  if (found.hasAttribute("data-step")) { select(Number(found.getAttribute("data-step"))); return; }
  view.opened.add(found.getAttribute("data-group"));
  draw();
}
function start() {
  headOfPage();
  activityPicture();
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("t")) view.t = Math.min(END, Math.max(0, Number(wanted.get("t")) || 0));
  draw();
  const named = wanted.get("step"), at = named === null ? -1 : S.findIndex((s) => s.id === named || s.name === named);
  select(at);
  byId("slider").addEventListener("input", (e) => go(END * e.target.value / 2000, true));
  byId("back").addEventListener("click", () => nextChange(-1));
  byId("forth").addEventListener("click", () => nextChange(1));
  byId("play").addEventListener("click", play);
  byId("search").addEventListener("input", (e) => search(e.target.value));
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.addEventListener("click", (e) => clicked(e.target));
  document.addEventListener("keydown", keyed);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { if (String(document.querySelector(".pictures").clientWidth) !== widths) draw(); }, 120); });
  document.documentElement.dataset.ready = "yes";
}
function keyed(e) {
  const typing = e.target.matches("input[type=search]");
  if (e.key === "Enter" && typing) { nextHit(); return; }
  if (e.key === "Escape") { if (typing) e.target.blur(); select(-1); return; }
  if (typing) return;
  if (e.key === "/") { e.preventDefault(); byId("search").focus(); return; }
  if (e.target.matches("input")) return;
  if (e.key === "ArrowRight") nextChange(1);
  else if (e.key === "ArrowLeft") nextChange(-1);
  else if ((e.key === "Enter" || e.key === " ") && e.target.matches("g[data-step], [data-group][role=button]")) { e.preventDefault(); clicked(e.target); }
  else if (e.key === " " && !e.target.matches("button")) { e.preventDefault(); play(); }
}
start();
