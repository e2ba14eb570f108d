// Who ran what when: a row for each slot of each worker, and the slider's background: how much ran at once.

function enginesPicture() {
  const section = byId("engines"), box = clear(section.querySelector(".picture"));
  const W = Math.max(240, box.clientWidth - 2), left = W < 560 ? 62 : 126, right = 12;
  const x = (t) => left + (W - left - right) * t / END;
  const hosts = D.hosts.map((h, i) => ({ ...h, tries: D.attempts.filter((a) => a.host === i) })).filter((h) => h.tries.length);
  const bars = [], g = svg("g", {}), joins = S.filter((s) => s.kind === "join" && s.decided !== null);
  let y = 24, packed = 0;
  for (const host of hosts) {
    const lanes = 1 + Math.max(...host.tries.map((a) => a.lane)), h = lanes <= 20 ? 17 : lanes <= 40 ? 9 : Math.max(1.5, Math.min(5, 420 / lanes));
    if (h < 12) packed += 1;
    const top = y, most = busiest(host.tries);
    for (const a of host.tries) { const bar = attemptBar(a, x, y + a.lane * h, h, g); bars.push(bar); }
    y += lanes * h;
    if (y - top < 30) y = top + 30;
    g.append(svg("text", { class: "bold", x: 8, y: top + 13 }, line(host.name, left < 80 ? 9 : 16), svg("title", {}, host.name)),
      svg("text", { class: "soft", x: 8, y: top + 26 }, left < 80 ? `${most} at once` : `${most} at once of ${host.slots}`),
      svg("line", { class: "rule", x1: 0, x2: W, y1: y + 6, y2: y + 6 }));
    y += 13;
  }
  const diamonds = [];
  if (joins.length) {
    g.append(svg("text", { class: "bold", x: 8, y: y + 13 }, "joins"), svg("text", { class: "soft", x: 8, y: y + 26 }, left < 80 ? "" : "no worker"));
    for (const step of joins) {
      const d = svg("path", { class: "verdict", d: `M${x(step.decided)} ${y + 5}l6 7l-6 7l-6 -7z` }, svg("title", {}, `${step.name}: ${line(step.why || stateOf(step), 200)}`));
      g.append(shows(step, d));
      diamonds.push([d, step]);
    }
    y += 34;
  }
  const drawing = svg("svg", { width: W, height: y + 4, viewBox: `0 0 ${W} ${y + 4}`, role: "group", "aria-label": "Attempts over time" });
  for (const t of ticks(END, W < 560 ? 4 : 8)) drawing.append(svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 18, y2: y }), svg("text", { class: "soft", x: x(t), y: 13, "text-anchor": anchor(t, x(t), W) }, t ? secs(t) : "0"));
  const cursor = svg("line", { class: "cursor", y1: 16, y2: y });
  drawing.append(g, cursor);
  if (hosts.length || joins.length) box.append(drawing);
  box.setAttribute("data-none", "Nothing was run.");
  say(section, `${plural(D.attempts.length, "attempt")} on ${plural(hosts.length, "worker")}; a row is a slot, a bar an attempt. ` + (packed ? "Rows of busy workers are drawn thin, without names." : ""));
  legend(section, [[bit("try"), "running"], [bit("try succeeded"), "gave its step's value"], [bit("try stopped"), "stopped: no longer needed"], [bit("try failed"), "failed or lost"],
    [svg("g", {}, bit("try succeeded"), bit("early")), "pale: before its first token"], [svg("path", { class: "verdict", d: "M7 1l6 6l-6 6l-6 -6z" }), "a join's verdict"]]);
  return (t) => {
    cursor.setAttribute("x1", x(t)); cursor.setAttribute("x2", x(t));
    for (const bar of bars) updateBar(bar, t, x);
    for (const [d, step] of diamonds) d.setAttribute("opacity", step.decided <= t ? 1 : .12);
  };
}
function bit(kind) { return svg("rect", { class: kind, x: 0, y: 2, width: 14, height: 10 }); }
function busiest(tries) {
  let most = 0, live = 0;
  const moves = tries.flatMap((a) => [[a.start, 1], [a.end === null ? Infinity : a.end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (const [, by] of moves) { live += by; most = Math.max(most, live); }
  return most;
}
function attemptBar(a, x, y, h, into) {
  const step = S[a.step], tall = Math.max(1, h - (h > 6 ? 2 : h > 2 ? .6 : 0));
  const rect = svg("rect", { class: "try", x: x(a.start), y, height: tall, width: 1, rx: h > 8 ? 2 : 0 }, svg("title", {}, `${step.name}${step.tries.length > 1 ? `, try ${step.tries.indexOf(a) + 1}` : ""}: ${secs(a.start)} to ${secs(a.end)}`));
  const pale = a.first !== null ? svg("rect", { class: "early", x: x(a.start), y, height: tall, width: 0, "pointer-events": "none" }) : null;
  const halt = a.stopping !== null ? svg("rect", { class: "halting", x: x(a.stopping), y, height: tall, width: 0, "pointer-events": "none" }) : null;
  into.append(shows(step, rect));
  if (pale) into.append(pale);
  if (halt) into.append(halt);
  const full = x(a.end === null ? END : a.end) - x(a.start), chars = Math.floor((full - 8) / 6);
  const name = h >= 12 && chars >= 3 ? svg("text", { class: "over", x: x(a.start) + 5, y: y + 11.5 }, line(step.name, chars)) : null;
  if (name) into.append(name);
  return { a, rect, pale, halt, name, step };
}
function updateBar(bar, t, x) {
  const { a, rect } = bar, end = Math.min(t, a.end === null ? END : a.end), on = t > a.start || (t === a.start && t === END);
  const over = a.end !== null && t >= a.end;
  rect.setAttribute("class", `try ${over ? (a.ending === "succeeded" && !a.read ? "stopped" : a.ending) : a.stopping !== null && t >= a.stopping ? "stopped" : ""}`);
  markOne(rect, [bar.step]);
  rect.setAttribute("width", on ? Math.max(1.2, x(end) - x(a.start)) : 0);
  if (bar.pale) bar.pale.setAttribute("width", on ? Math.max(0, x(Math.min(end, a.first)) - x(a.start)) : 0);
  if (bar.halt) bar.halt.setAttribute("width", t > a.stopping ? Math.max(0, x(end) - x(a.stopping)) : 0);
  if (bar.name) bar.name.setAttribute("opacity", on && x(end) - x(a.start) > 24 ? 1 : 0);
}
// A label at an edge stands within the drawing.
function anchor(value, at, width) { return !value ? "start" : at > width - 24 ? "end" : "middle"; }
function ticks(end, most, least) {
  const raw = Math.max(least || 0, end / most), base = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const at = [];
  for (let t = 0; t <= end * 1.0001; t += step) at.push(t);
  return at;
}

// How many attempts were running, and how many steps ready and waiting for a slot, over the whole run.
function activityPicture() {
  const box = clear(byId("activity")), points = 240, running = new Array(points + 1).fill(0), queued = new Array(points + 1).fill(0);
  const add = (list, from, to) => { for (let k = Math.ceil(Math.max(0, from) / END * points); k <= Math.min(points, Math.floor(to / END * points)); k++) list[k] += 1; };
  for (const a of D.attempts) add(running, a.start, a.end === null ? END : a.end);
  for (const s of S) s.moves.forEach((m, k) => { if (m[1] === "ready") add(queued, m[0], s.moves[k + 1] ? s.moves[k + 1][0] - 1e-9 : END); });
  const most = Math.max(1, ...running.map((r, k) => r + queued[k]));
  const area = (low, high) => "M" + high.map((v, k) => `${k} ${24 - 22 * v / most}`).join("L") + "L" + low.map((v, k) => [k, v]).reverse().map(([k, v]) => `${k} ${24 - 22 * v / most}`).join("L") + "z";
  box.setAttribute("viewBox", `0 0 ${points} 24`);
  box.setAttribute("preserveAspectRatio", "none");
  box.append(svg("path", { class: "live", d: area(running.map(() => 0), running) }), svg("path", { class: "queued", d: area(running, running.map((r, k) => r + queued[k])) }));
}
