// The panel beside the pictures: all that is known of one step, or of one stretch of the prefix tree.

function pairs(rows) {
  return el("table", {}, rows.filter((r) => r && r[1] !== "" && r[1] !== null && r[1] !== undefined).map(([key, value]) => el("tr", {}, el("th", {}, key), el("td", {}, value))));
}
function stepLinks(ids, most) {
  return el("span", {}, ids.slice(0, most).flatMap((i, k) => [k ? ", " : "", el("button", { type: "button", class: "link", "data-step": i }, S[i].name)]), ids.length > most ? ` and ${num(ids.length - most)} more` : "");
}
function head(words, state) {
  return el("h2", {}, state ? el("span", { class: `mark ${state}` }, SIGNS[state]) : null, el("span", {}, words), el("button", { type: "button", id: "close", title: "Close (Escape)" }, "×"));
}

function showNothing() {
  const box = clear(byId("details"));
  box.classList.remove("open");
  box.append(el("p", {}, "Click a step, a bar or a stretch of the prefix tree to read what it is: prompt, text, usage, story."),
    el("p", {}, el("small", {}, "Keys: ← → change by change, space plays, / searches, Enter goes to the next found, Escape closes. Behind the slider: how much was running (blue), and waiting for a slot (amber).")),
    el("h3", {}, "Run"), pairs([["run", D.run], ["task", D.task], ["planner", D.planner], ["policies", D.policies.join(", ")], ["budget", D.budget], ["seed", String(D.seed)], ["model", D.model], ["submitted", new Date(D.unix * 1000).toISOString()], ["plait", D.plait]]));
}

function showStep(step) {
  const box = clear(byId("details")), t = view.t, state = stateAt(step, t);
  box.classList.add("open");
  box.append(head(step.name, state));
  const readers = S.filter((s) => s.needs.includes(step.i)).map((s) => s.i), ready = step.moves.find((m) => m[1] === "ready"), first = step.tries[0];
  box.append(pairs([["state", `${WORDS[state] || state}${t < END ? ` at ${secs(t)}` : ""}`], ["why", reasonOf(step) && (endOf(step) === null || t >= endOf(step)) ? reasonOf(step) : ""], ["kind", KINDS[step.kind] + (step.expands ? ", may expand into more plan" : "") + (step.effects ? ", changes the world" : "")],
    ["label", step.label], ["tool", step.tool], ["merge", step.merge], ["ends", step.rule], ["planned", secs(step.entered)], ["waited", ready && first ? secs(first.start - ready[0]) + " for a slot" : ""],
    ["ran", first ? secs((step.tries[step.tries.length - 1].end ?? END) - first.start) : ""], ["needs", step.needs.length ? stepLinks(step.needs, 12) : ""], ["continues", step.after >= 0 ? stepLinks([step.after], 1) : ""], ["read by", readers.length ? stepLinks(readers, 12) : ""],
    ["inside", step.owner >= 0 ? stepLinks([step.owner], 1) : ""], ["expanded into", step.kids.length ? stepLinks(step.kids, 12) : ""], ["budget", step.budget], ["priority", step.priority ? String(step.priority) : ""],
    ["sampling", Object.entries(step.sampling).map(([k, v]) => `${k} ${typeof v === "string" ? v : JSON.stringify(v)}`).join(", ")], ["logprob", step.logprob === null ? "" : `${step.logprob.toFixed(4)} nats a token`],
    ["confidence", step.signals ? step.signals.confidence.toFixed(3) : ""], ["on the way", step.chain ? "the end of the run waited for this step" : ""]]));
  if (step.failure) box.append(el("p", { class: "bad" }, step.failure));
  if (step.frames && !step.tries.some((a) => a.frames)) box.append(el("h3", {}, "Raised at"), el("pre", {}, step.frames));
  if (step.prompt.length) box.append(el("h3", {}, "Prompt"), promptOf(step));
  if (step.args !== null) box.append(el("h3", {}, "Arguments"), el("pre", {}, step.args));
  if (step.text) box.append(el("h3", {}, step.kind === "think" ? "Text" : step.kind === "call" ? "Returned" : "Verdict"), el("pre", {}, step.text));
  if (step.value !== null) box.append(el("h3", {}, "Value, after what it expanded into"), el("pre", {}, step.value));
  if (step.tries.length) box.append(el("h3", {}, "Attempts"), attemptsTable(step));
  box.append(el("h3", {}, "Story"), el("ol", {}, el("li", {}, `${secs(step.entered)} planned`), step.moves.map(([at, to, reason]) => el("li", {}, `${secs(at)} ${to}${reason ? ` (${reason})` : ""}`))));
  box.scrollTop = 0;
}
function promptOf(step) {
  const pre = el("pre", {});
  for (const piece of step.prompt) {
    if (piece.kind === "text") pre.append(piece.text);
    else if (piece.kind === "tokens") pre.append(el("span", { class: "chip" }, `[${num(piece.tokens)} token ids]`));
    else {
      const known = piece.step >= 0, name = known ? S[piece.step].name : "a step";
      const words = piece.kind === "context" ? `⟨context of ${name}, token for token${piece.own ? "" : ", to its end"}⟩` : `⟨value of ${name}⟩`;
      pre.append(known ? el("button", { type: "button", class: "chip", "data-step": piece.step }, words) : words, piece.text ? piece.text : "");
    }
  }
  return pre;
}
function attemptsTable(step) {
  const rows = step.tries.map((a, k) => [el("tr", {}, el("th", {}, `${k + 1} on ${D.hosts[a.host].name}`), el("td", {}, `${secs(a.start)} – ${a.end === null ? "…" : secs(a.end)}, ${a.end === null ? "still running" : a.ending}${a.finish && a.finish !== "stop" ? ` (${a.finish})` : ""}`)),
    ...(a.usage[0] || a.usage[2] ? [el("tr", {}, el("th", {}, "tokens"), el("td", {}, `${num(a.usage[0])} prompt, ${num(a.usage[1])} of them cached; ${num(a.usage[2])} generated${a.end !== null && !a.read ? ", read by nobody" : ""}`))] : []),
    ...(a.placed ? [el("tr", {}, el("th", {}, "placed"), el("td", {}, a.placed))] : []),
    ...(a.stopping !== null ? [el("tr", {}, el("th", {}, "stopped"), el("td", {}, `asked at ${secs(a.stopping)}${a.end !== null ? `, over after ${secs(a.end - a.stopping)} more` : ""}: ${a.stop_reason}`))] : []),
    ...(a.failure ? [el("tr", {}, el("th", {}, "failure"), el("td", { class: "bad" }, a.failure))] : []),
    ...(a.frames ? [el("tr", {}, el("th", {}, "raised at"), el("td", {}, el("pre", {}, a.frames)))] : [])]);
  return el("table", {}, rows);
}

function showPart(i) {
  const part = D.segments[i], box = clear(byId("details"));
  box.classList.add("open");
  const made = part.contacts.filter((c) => c[3]), computed = part.contacts.filter((c) => c[2]), cached = part.contacts.filter((c) => c[1]);
  box.append(head(`${plural(part.length, D.unit.slice(0, -1))} of context`));
  box.append(pairs([["place", `${num(part.start)} to ${num(part.start + part.length)}`], ["generated by", made.length ? stepLinks(made.map((c) => c[0]), 8) : ""],
    ["computed by", computed.length ? stepLinks(computed.map((c) => c[0]), 12) : ""], ["cached for", cached.length ? stepLinks(cached.map((c) => c[0]), 12) : ""]]));
  const list = part.contacts.slice(0, 60).map(([s, c, p, g]) => el("tr", {}, el("th", {}, el("button", { type: "button", class: "link", "data-step": s }, S[s].name)), [c, p, g].map((n) => el("td", { class: "num" }, n ? num(n) : ""))));
  box.append(el("h3", {}, `${D.unit} by step`), el("table", {}, el("tr", {}, ["step", "cached", "computed", "generated"].map((w) => el("th", {}, w))), list));
  if (part.contacts.length > 60) box.append(el("p", {}, `and ${num(part.contacts.length - 60)} more`));
  if (part.text) box.append(el("h3", {}, "Text"), el("pre", {}, part.text));
  box.scrollTop = 0;
}
