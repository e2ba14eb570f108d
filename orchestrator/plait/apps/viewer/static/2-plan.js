// The plan as a picture: layers of steps, what a step expanded into inside it, and whose value or context goes where.

const LEAF = { w: 158, h: 38 }, GAP = { main: 34, cross: 9 }, PAD = 10, HEAD = 26, CELL = 12;
const MANY = 19; // as many like steps of one layer are drawn as one block of cells
const MOST_CELLS = 4000;
const MOST_OPEN = 200; // steps of a block that are drawn one by one when it is opened

function planPicture() {
  const section = byId("plan"), box = clear(section.querySelector(".picture"));
  const width = Math.max(240, box.clientWidth - 2);
  const roots = S.filter((s) => s.owner < 0).map((s) => s.i);
  let across = width >= 640, whole = layScope(roots, width - 2 * PAD, across);
  if (across && whole.w > 1.35 * width) { across = false; whole = layScope(roots, width - 2 * PAD, false); }
  const W = Math.max(width, whole.w + 2 * PAD), H = whole.h + 2 * PAD;
  const fit = across && W > width ? width / W : 1; // a little too wide is drawn a little smaller
  const drawing = svg("svg", { width: W * fit, height: H * fit, viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Steps of the plan and what they need" });
  drawing.append(svg("defs", {}, arrow("tip"), arrow("tip-after")));
  const holders = svg("g", {}), edges = svg("g", {}), leaves = svg("g", {}), places = new Map(), blocks = [];
  drawing.append(holders, edges, leaves);
  place(whole, PAD + Math.max(0, (W - 2 * PAD - whole.w) / 2), PAD, { holders, leaves }, places, blocks);
  drawEdges(edges, places, across);
  box.append(drawing);
  const folded = blocks.filter((b) => b.steps.length > 1), inside = folded.reduce((n, b) => n + b.steps.length, 0);
  say(section, `${plural(S.length, "step")}. ` + (folded.length
    ? `${num(inside)} of them are like others of their layer and drawn as ${plural(folded.length, "block")} of cells, ` +
      `${folded.some((b) => b.per > 1) ? "several steps a cell" : "one step a cell"}; click a cell for its step, a block's name to draw its first ${MOST_OPEN} steps one by one.`
    : "Click a step for its prompt, text and story."));
  legend(section, [...["waiting", "ready", "running", "expanded", "done", "failed", "cancelled"].map((state) => [
    svg("g", { class: state }, svg("rect", { class: "box", x: 1, y: 1, width: 12, height: 12, rx: 3 }), svg("text", { class: "sign", x: 7, y: 11, "text-anchor": "middle" }, SIGNS[state])), state]),
    [svg("path", { class: "edge", d: "M0 7H14" }), "needs its value"], [svg("path", { class: "edge after", d: "M0 7H14" }), "continues its context"],
    [svg("g", { class: "chain" }, svg("rect", { class: "box", x: 1, y: 1, width: 12, height: 12, rx: 3 })), "thick: the end waited for it"]]);
  return (t) => updatePlan(t, places, blocks, edges);
}

function arrow(id) {
  return svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { class: id, d: "M0 0L8 4L0 8z" }));
}

// Layer of each step among those of its scope: one more than the last of what it needs there.
function layersOf(ids) {
  const within = new Set(ids), layer = new Map();
  const visit = (first) => {
    const stack = [first];
    while (stack.length) {
      const i = stack[stack.length - 1];
      if (layer.has(i)) { stack.pop(); continue; }
      const deps = [...S[i].needs, ...(S[i].after >= 0 ? [S[i].after] : [])].map((d) => ancestorIn(d, within)).filter((d) => d >= 0 && d !== i);
      const open = deps.filter((d) => !layer.has(d) && !stack.includes(d));
      if (open.length) { stack.push(...open); continue; }
      layer.set(i, 1 + Math.max(-1, ...deps.map((d) => layer.get(d) ?? -1)));
      stack.pop();
    }
  };
  ids.forEach(visit);
  const layers = [];
  for (const i of ids) (layers[layer.get(i)] ||= []).push(i);
  return layers.filter(Boolean);
}
function ancestorIn(i, within) {
  while (i >= 0 && !within.has(i)) i = S[i].owner;
  return i;
}

function layScope(ids, room, across) {
  const layers = layersOf(ids).map((layer) => itemsOf(layer, room, across));
  return across ? layAcross(layers) : layDown(layers, room);
}
function itemsOf(layer, room, across) {
  const alike = new Map();
  for (const i of layer) {
    const key = S[i].kids.length ? `#${i}` : `${S[i].kind} ${stem(S[i].name)} ${S[i].tool}`;
    if (!alike.has(key)) alike.set(key, []);
    alike.get(key).push(i);
  }
  const items = [];
  for (const [key, ids] of alike) {
    const block = `${S[ids[0]].owner} ${key}`;
    const single = ids.length < MANY ? ids : view.opened.has(block) ? ids.slice(0, MOST_OPEN) : [], rest = ids.slice(single.length);
    if (rest.length) items.push(blockOf(rest, block, room));
    for (const i of single) items.push(S[i].kids.length ? scopeItem(i, room, across) : { step: i, w: leafWidth(room, across), h: LEAF.h });
  }
  return items;
}
function leafWidth(room, across) { // two side by side, where there is little room
  return across || room > 2 * LEAF.w + GAP.cross ? LEAF.w : room > 250 ? (room - GAP.cross) / 2 : room;
}
function scopeItem(i, room, across) {
  const inner = layScope(S[i].kids, room - 2 * PAD, across);
  return { step: i, inner, w: Math.max(LEAF.w, inner.w + 2 * PAD), h: inner.h + HEAD + 2 * PAD };
}
function blockOf(ids, block, room) {
  const per = Math.ceil(ids.length / MOST_CELLS), cells = Math.ceil(ids.length / per);
  const columns = Math.max(8, Math.min(Math.floor((Math.min(room, 520) - 2 * PAD) / CELL), Math.ceil(Math.sqrt(cells * 1.6))));
  return { block, ids, per, cells, columns, w: Math.max(LEAF.w, columns * CELL + 2 * PAD), h: Math.ceil(cells / columns) * CELL + HEAD + PAD };
}
function layAcross(layers) {
  let x = 0, h = 0;
  const columns = [];
  for (const items of layers) {
    let column = { items: [], h: 0, w: 0 };
    for (const item of items) {
      if (column.items.length && column.h + item.h > 620) { columns.push(column); column = { items: [], h: 0, w: 0, same: true }; }
      column.items.push(item);
      column.h += item.h + (column.items.length > 1 ? GAP.cross : 0);
      column.w = Math.max(column.w, item.w);
    }
    columns.push(column);
  }
  for (const column of columns) h = Math.max(h, column.h);
  for (const column of columns) {
    if (x) x += column.same ? GAP.cross : GAP.main;
    let y = (h - column.h) / 2;
    for (const item of column.items) { item.x = x; item.y = y; y += item.h + GAP.cross; }
    x += column.w;
  }
  return { w: x, h, items: columns.flatMap((c) => c.items) };
}
function layDown(layers, room) {
  let y = 0, w = 0;
  const all = [];
  for (const items of layers) {
    if (y) y += GAP.main - 6;
    let x = 0, tall = 0;
    for (const item of items) {
      if (x && x + item.w > room) { y += tall + GAP.cross; x = 0; tall = 0; }
      item.x = x; item.y = y;
      x += item.w + GAP.cross; tall = Math.max(tall, item.h); w = Math.max(w, x - GAP.cross);
      all.push(item);
    }
    y += tall;
  }
  return { w, h: y, items: all };
}

function place(laid, x, y, into, places, blocks) {
  for (const item of laid.items) {
    const at = { x: x + item.x, y: y + item.y, w: item.w, h: item.h };
    if (item.block !== undefined) drawBlock(item, at, into.leaves, places, blocks);
    else {
      drawStep(S[item.step], at, item.inner ? into.holders : into.leaves, places, Boolean(item.inner));
      if (item.inner) place(item.inner, at.x + PAD, at.y + HEAD + PAD / 2, into, places, blocks);
    }
  }
}
function drawStep(step, at, into, places, holds) {
  const room = Math.floor((at.w - 30) / 6.3);
  const g = svg("g", { tabindex: 0, role: "button", "aria-label": step.name },
    svg("title", {}, `${step.name}${step.label ? " · " + line(step.label, 200) : ""}`),
    svg("rect", { class: "box", x: at.x, y: at.y, width: at.w, height: at.h, rx: 6 }),
    svg("text", { class: "sign", x: at.x + 12, y: at.y + 16, "text-anchor": "middle" }, ""),
    svg("text", { class: "bold", x: at.x + 22, y: at.y + 16 }, line(step.name, room)),
    holds ? svg("text", { class: "soft", x: at.x + at.w - 8, y: at.y + 16, "text-anchor": "end" }, "") : svg("text", { class: "soft", x: at.x + 22, y: at.y + 30 }, ""));
  into.append(shows(step, g));
  places.set(step.i, { ...at, g, step, holds, room, edge: holds ? HEAD / 2 : at.h / 2 });
}
function drawBlock(item, at, into, places, blocks) {
  const first = S[item.ids[0]], g = svg("g", { class: "block" });
  const count = svg("text", { class: "soft", x: at.x + PAD, y: at.y + at.h + 12 }, "");
  const head = svg("text", { class: "bold", x: at.x + PAD, y: at.y + 17, "data-group": item.block, tabindex: 0, role: "button" }, `${line(stem(first.name) || first.name, 18)} × ${num(item.ids.length)}`);
  g.append(svg("rect", { class: "box", x: at.x, y: at.y, width: at.w, height: at.h, rx: 6, "fill-opacity": .4 }), head);
  const cells = [];
  for (let c = 0; c < item.cells; c++) {
    const steps = item.ids.slice(c * item.per, (c + 1) * item.per).map((i) => S[i]);
    const cell = svg("rect", { class: "cell", x: at.x + PAD + (c % item.columns) * CELL, y: at.y + HEAD + Math.floor(c / item.columns) * CELL, width: CELL - 2, height: CELL - 2, rx: 2 },
      svg("title", {}, steps.length > 1 ? `${steps[0].name} … ${steps[steps.length - 1].name}` : steps[0].name));
    for (const step of steps) shows(step, cell);
    cell.setAttribute("data-step", steps[0].i);
    cells.push([cell, steps]);
    g.append(cell);
  }
  into.append(g);
  const block = { ...at, g, cells, steps: item.ids.map((i) => S[i]), per: item.per, block: item.block, edge: at.h / 2, count };
  for (const i of item.ids) places.set(i, block);
  blocks.push(block);
}

function drawEdges(into, places, across) {
  const seen = new Set();
  for (const step of S) {
    const to = places.get(step.i);
    const ends = [...step.needs.map((d) => [d, ""]), ...(step.after >= 0 ? [[step.after, "after"]] : [])];
    for (const [d, kind] of ends) {
      const from = places.get(d);
      if (!from || !to || from === to || (kind === "" && d === step.after)) continue;
      const key = `${from.step ? from.step.i : from.block}>${to.step ? to.step.i : to.block}${kind}`;
      if (seen.has(key)) continue;
      seen.add(key);
      const around = isInside(step.i, d);
      const path = svg("path", { class: `edge ${kind}`, d: around ? downFrom(from, to, across) : curve(from, to, across), "marker-end": `url(#${kind ? "tip-after" : "tip"})`, "data-from": d, "data-to": step.i });
      into.append(path);
    }
  }
}
function isInside(i, outer) { for (i = S[i].owner; i >= 0; i = S[i].owner) if (i === outer) return true; return false; }
function curve(a, b, across) {
  if (across && b.x > a.x + a.w) {
    const x = a.x + a.w, y = a.y + a.h / 2, u = b.x, v = b.y + (b.holds ? b.edge : b.h / 2), m = Math.max(12, (u - x) / 2);
    return `M${x} ${y}C${x + m} ${y} ${u - m} ${v} ${u - 1} ${v}`;
  }
  const x = a.x + a.w / 2, y = a.y + a.h, u = b.x + (b.holds ? 40 : b.w / 2), v = b.y, m = Math.max(10, Math.abs(v - y) / 2);
  return `M${x} ${y}C${x} ${y + m} ${u} ${v - m} ${u} ${v - 1}`;
}
function downFrom(outer, b, across) {
  const x = outer.x + 14, y = outer.y + HEAD - 2;
  if (across || b.x < x + 30) { const v = b.y + (b.holds ? b.edge : b.h / 2); return `M${outer.x + 4} ${y}C${outer.x + 4} ${v} ${outer.x + 4} ${v} ${b.x - 1} ${v}`; }
  const u = b.x + b.w / 2;
  return `M${x} ${y}C${x} ${b.y - 4} ${u} ${y} ${u} ${b.y - 1}`;
}

function updatePlan(t, places, blocks, edges) {
  for (const p of new Set(places.values())) {
    if (!p.step) continue;
    const state = stateAt(p.step, t), tokens = tokensAt(p.step, t);
    const base = `${state}${p.holds ? " hold" : ""}${p.step.chain ? " chain" : ""}`;
    if (p.was !== base) { p.was = base; p.g.setAttribute("class", base); markOne(p.g, [p.step]); p.g.children[2].textContent = SIGNS[state]; }
    const made = tokens[2] + tokens[3], started = p.step.tries.length ? p.step.tries[0].start : null;
    let words = KINDS[p.step.kind] + (p.step.tool ? " " + p.step.tool : "");
    if (p.step.tool && p.step.label) words = p.step.label; // it says the call
    else if (state === "absent" || state === "waiting") words = p.step.label || words;
    else if (made) words = `${num(made)} tok`;
    else if (p.step.label) words = p.step.label;
    if (!p.holds && made && started !== null) { const end = endOf(p.step); words += ` · ${secs(Math.min(t, end === null ? END : end) - started)}`; }
    p.g.children[4].textContent = p.holds ? holdsWords(p, made, t) : line(words, p.room + 2);
  }
  for (const b of blocks) for (const [cell, steps] of b.cells) {
    const state = steps.map((s) => stateAt(s, t)).sort((x, y) => LOUD.indexOf(x) - LOUD.indexOf(y))[0];
    cell.setAttribute("class", `cell ${state}`);
    markOne(cell, steps);
  }
  for (const path of edges.children) {
    const from = S[path.getAttribute("data-from")], to = S[path.getAttribute("data-to")];
    path.classList.toggle("off", stateAt(from, t) === "absent" || stateAt(to, t) === "absent");
    path.classList.toggle("lit", view.sel === from.i || view.sel === to.i);
  }
}
function holdsWords(p, made, t) {
  const inside = p.step.kids.filter((k) => S[k].entered <= t).length;
  return line((made ? `${num(made)} tok` : "") + (made && inside ? " · " : "") + (inside ? `expands into ${num(inside)}` : made ? "" : p.step.label), Math.max(8, p.room - p.step.name.length - 2));
}
const LOUD = ["failed", "running", "expanding", "cancelled", "ready", "waiting", "expanded", "done", "absent"];
