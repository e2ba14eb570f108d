// The prefix tree: contexts from left to right, a shared stretch drawn once with its branches to the right of it.

const FEW = 26; // branches of one stretch that are drawn; more are folded into one row

function prefixesPicture() {
  const section = byId("prefixes"), box = clear(section.querySelector(".picture"));
  const G = D.segments.map((g, i) => ({ ...g, i, kids: [] }));
  for (const g of G) if (g.parent >= 0) G[g.parent].kids.push(g.i);
  const promptOf = new Map(), madeOf = new Map();
  for (const g of G) for (const [s, cached, computed, made] of g.contacts) {
    promptOf.set(s, (promptOf.get(s) || 0) + cached + computed);
    madeOf.set(s, (madeOf.get(s) || 0) + made);
  }
  box.setAttribute("data-none", "No model call was begun.");
  if (!G.length) { say(section, ""); return () => {}; }
  const W = Math.max(240, box.clientWidth - 2), longest = Math.max(...G.map((g) => g.start + g.length)), k = (W - 20) / longest;
  const rows = rowsOf(G), h = Math.max(8, Math.min(22, 560 / rows.count)), H = rows.count * h + 30;
  const drawing = svg("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Prefix tree" });
  drawing.append(svg("defs", {}, svg("pattern", { id: "dots", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("circle", { cx: 2, cy: 2, r: 1.5, fill: "#fff", "fill-opacity": .85 }))));
  for (const n of ticks(longest, W < 560 ? 4 : 8, 1)) drawing.append(svg("line", { class: "grid", x1: 10 + n * k, x2: 10 + n * k, y1: 18, y2: H }), svg("text", { class: "soft", x: 10 + n * k, y: 13, "text-anchor": anchor(n, 10 + n * k, W) }, n ? num(n) : `0 ${D.unit}`));
  const drawn = [];
  for (const [i, span] of rows.spans) {
    const g = G[i], x = 10 + g.start * k, y = 20 + span.top * h, tall = Math.max(2, span.rows * h - (h > 5 ? 2 : .5));
    const kind = g.contacts.some((c) => c[3]) ? "made" : "computed";
    const rect = svg("rect", { class: "seg", x, y, height: tall, width: 1, "data-part": i });
    const reuse = svg("rect", { class: "reuse", x, y, height: tall, width: 0 });
    const words = svg("text", { class: "over", x: x + 4, y: y + tall / 2 + 4 }, "");
    const maker = g.contacts.length === 1 ? S[g.contacts[0][0]] : null;
    if (maker) shows(maker, rect);
    rect.setAttribute("data-part", i);
    drawing.append(rect, reuse, words);
    drawn.push({ g, rect, reuse, words, kind, x, full: g.length * k, tall, maker });
  }
  for (const fold of rows.folds) {
    const x = 10 + fold.start * k, y = 20 + fold.top * h;
    drawing.append(svg("rect", { class: "c-fold", x, y, width: Math.max(2, fold.length * k), height: Math.max(2, h - 2), opacity: .35, "data-group": `prefix ${fold.parent}`, tabindex: 0, role: "button" }),
      svg("text", { x: Math.min(x + 4, W - 180), y: y + h / 2 + 4, "pointer-events": "none" }, `+ ${plural(fold.count, "more branch", "more branches")} (${num(fold.tokens)} ${D.unit})`));
  }
  box.append(drawing);
  prefixWords(section, G, rows.folds);
  return (t) => { for (const d of drawn) updateSegment(d, t, k, promptOf, madeOf); };
}
function prefixWords(section, G, folds) {
  const [prompt, cached, made] = [D.usage.prompt, D.usage.cached, D.usage.completion];
  const hidden = folds.reduce((n, f) => n + f.count, 0);
  say(section, `Contexts from left to right in ${D.unit}; what several model calls have in common is drawn once, with its branches to the right. ` +
    `${num(prompt)} prompt tokens were sent, ${num(cached)} of them (${prompt ? Math.round(100 * cached / prompt) : 0} %) read from the cache; ${num(made)} were generated.` +
    (hidden ? ` ${num(hidden)} branches are folded; click a fold to open it.` : ""));
  legend(section, [[bit("c-computed"), "prompt, computed"], [bit("c-made"), "generated, and read"], [bit("c-unread"), "generated, read by nobody"],
    [svg("g", {}, bit("c-computed"), svg("rect", { class: "reuse", x: 0, y: 2, width: 14, height: 10 })), "dotted: read from the cache by later calls"]]);
}
// Rows from top to bottom: a stretch covers those of its branches. Long lists of branches that do not branch are folded.
function rowsOf(G) {
  const spans = new Map(), folds = [];
  let row = 0;
  const stack = G.filter((g) => g.parent < 0).map((g) => ["in", g.i]).reverse();
  const weight = (i) => { let sum = 0; const todo = [i]; while (todo.length) { const g = G[todo.pop()]; sum += g.length; todo.push(...g.kids); } return sum; };
  while (stack.length) {
    const [what, i, fold] = stack.pop(), g = G[i];
    if (what === "out") { spans.get(i).rows = row - spans.get(i).top; continue; }
    if (what === "fold") { folds.push({ ...fold, top: row, parent: i }); row += 1; continue; }
    spans.set(i, { top: row, rows: 1 });
    if (!g.kids.length) { row += 1; continue; }
    stack.push(["out", i]);
    let kids = g.kids;
    if (kids.length > FEW && !view.opened.has(`prefix ${i}`)) {
      const rest = kids.slice(FEW - 2);
      kids = kids.slice(0, FEW - 2);
      stack.push(["fold", i, { count: rest.length, tokens: rest.reduce((n, r) => n + weight(r), 0), start: g.start + g.length, length: Math.max(...rest.map((r) => G[r].length)) }]);
    }
    for (const kid of [...kids].reverse()) stack.push(["in", kid]);
  }
  return { spans, folds, count: row };
}
function segmentAt(g, t, promptOf, madeOf) {
  const sum = { cached: 0, computed: 0, made: 0, readers: 0, makers: 0, shown: 0, unread: true };
  for (const [s, cached, computed, made] of g.contacts) {
    const tries = S[s].tries, a = tries.find((each) => each.read) || tries[tries.length - 1];
    if (!a || t < a.start) continue;
    if (cached) { sum.cached += cached; sum.readers += 1; }
    if (computed) { sum.computed += computed; sum.makers += 1; }
    if (cached || computed) sum.shown = g.length;
    if (made) {
      const done = madeBy(a, t) * (madeOf.get(s) || 0) / Math.max(1, a.usage[2]) + promptOf.get(s) - g.start;
      const here = Math.max(0, Math.min(made, done));
      sum.made += here; sum.shown = Math.max(sum.shown, here);
      if (!(a.stopping !== null && t >= a.stopping || a.end !== null && t >= a.end && !a.read)) sum.unread = false;
    }
  }
  return sum;
}
function updateSegment(d, t, k, promptOf, madeOf) {
  const sum = segmentAt(d.g, t, promptOf, madeOf), width = sum.shown ? Math.max(1.5, sum.shown * k) : 0;
  d.rect.setAttribute("width", width);
  d.rect.setAttribute("class", `seg c-${d.kind === "made" && sum.unread && !sum.readers ? "unread" : d.kind}`);
  if (d.maker) markOne(d.rect, [d.maker]);
  d.reuse.setAttribute("width", sum.readers ? width : 0);
  d.words.classList.toggle("halo", sum.readers > 0);
  let words = "";
  if (d.tall > 11 && width > 46) {
    const who = d.maker ? d.maker.name : d.kind === "made" ? makerOf(d.g) : "prompt";
    const more = sum.readers ? ` · cached for ${num(sum.readers)}` : sum.makers > 1 ? ` · computed ${num(sum.makers)}×` : "";
    const room = Math.floor((width - 6) / 6), whole = `${who} ${num(d.g.length)}${more}`, brief = `${who} ${num(d.g.length)}`;
    words = whole.length <= room ? whole : line(brief, room);
    if (words.length < 5) words = "";
  }
  if (d.was !== words) { d.was = words; d.words.textContent = words; }
}
function makerOf(g) { const made = g.contacts.find((c) => c[3]); return made ? S[made[0]].name : "prompt"; }
