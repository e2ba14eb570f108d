// What is better read than looked at: branches with their tokens, the joins' verdicts, and what was given up and why.

const LIKE = 10; // like branches in a row beyond this are folded

function branchesPicture() {
  const section = byId("branches"), box = clear(section.querySelector(".picture")), rows = [];
  const most = Math.max(1, ...S.map((s) => s.tries.reduce((n, a) => n + a.usage[0] + a.usage[2], 0)));
  let folded = 0;
  const walk = (ids, depth) => {
    for (let at = 0; at < ids.length;) {
      let end = at;
      const first = S[ids[at]], key = `rows ${first.owner} ${first.i}`;
      while (end < ids.length && !S[ids[end]].kids.length && stem(S[ids[end]].name) === stem(first.name) && S[ids[end]].kind === first.kind) end++;
      const shown = end - at > LIKE && !view.opened.has(key) ? at + 6 : Math.max(end, at + 1);
      for (; at < shown; at++) {
        const step = S[ids[at]], row = branchRow(step, depth, most);
        box.append(row.button);
        rows.push(row);
        walk(step.kids, depth + 1);
      }
      if (at < end) { box.append(foldRow(ids.slice(at, end), depth, key, rows)); folded += end - at; at = end; }
    }
  };
  walk(S.filter((s) => s.owner < 0).map((s) => s.i), 0);
  say(section, `In the order in which they were planned, indented by who expanded into whom. A full bar is ${plural(most, "token")}.` + (folded ? ` ${num(folded)} like steps are folded; click a fold to open it.` : ""));
  legend(section, [[bit("c-cached"), "prompt from the cache"], [bit("c-computed"), "prompt computed"], [bit("c-made"), "generated"], [bit("c-unread"), "generated, read by nobody"]]);
  return (t) => rows.forEach((row) => row.update(t));
}
function tokenBar() { return ["cached", "computed", "made", "unread"].map((kind) => el("i", { class: `c-${kind}` })); }
function fillBar(parts, tokens, most) { parts.forEach((part, k) => { part.style.width = `${100 * tokens[k] / most}%`; }); }
function branchRow(step, depth, most) {
  const mark = el("span", { class: "mark" }), parts = tokenBar(), count = el("span", { class: "num" }), text = el("span", { class: "text" });
  const name = el("span", { class: "name" }, mark, el("b", {}, step.name));
  name.style.paddingLeft = `${Math.min(depth, 8) * 14}px`;
  const button = shows(step, el("button", { type: "button", class: "row", title: step.label || null }, name, el("span", { class: "tokens" }, parts), count, text));
  const update = (t) => {
    const state = stateAt(step, t), tokens = tokensAt(step, t), made = tokens[2] + tokens[3];
    button.className = `row ${state}`;
    markOne(button, [step]);
    mark.className = `mark ${state}`;
    mark.textContent = SIGNS[state];
    mark.title = WORDS[state] || state;
    fillBar(parts, tokens, most);
    count.textContent = made ? num(made) : step.kind === "join" || state === "absent" ? "" : step.kind === "call" ? "tool" : "";
    const ended = ["done", "failed", "cancelled"].includes(state), gone = state === "failed" || state === "cancelled";
    const said = gone ? reasonOf(step) : step.kind === "join" ? (ended || state === "expanded" ? step.why || step.text : step.label || step.merge.split(":")[0]) : ended || state.startsWith("expand") ? step.text || step.label : step.label;
    text.textContent = line(said || "", 220);
  };
  return { button, update };
}
function foldRow(ids, depth, key, rows) {
  const steps = ids.map((i) => S[i]), label = el("span", {}), button = el("button", { type: "button", class: "row fold", "data-group": key }, label);
  label.style.paddingLeft = `${Math.min(depth, 8) * 14 + 20}px`;
  rows.push({ update: (t) => {
    const counts = {};
    let tokens = 0;
    for (const s of steps) { const state = stateAt(s, t); counts[state] = (counts[state] || 0) + 1; const n = tokensAt(s, t); tokens += n[2] + n[3]; }
    const states = Object.entries(counts).map(([state, n]) => `${num(n)} ${WORDS[state] || state}`).join(", ");
    const hits = steps.filter((s) => view.hits.has(s.i)).length;
    label.textContent = `… ${num(steps.length)} more like ${stem(steps[0].name)}: ${states}; ${num(tokens)} tokens${hits ? `; ${num(hits)} found` : ""} — show`;
  } });
  return button;
}

function stepButton(step, words) { return el("button", { type: "button", "data-step": step.i, title: step.name }, words || step.name); }
function stepButtons(ids, most) {
  const shown = ids.slice(0, most).map((i) => stepButton(S[i]));
  return [...shown, ...(ids.length > most ? [el("span", {}, ` and ${num(ids.length - most)} more`)] : [])];
}

function votesPicture() {
  const section = byId("votes"), box = clear(section.querySelector(".picture")), updates = [];
  box.setAttribute("data-none", "No step joined several branches.");
  for (const vote of D.votes) {
    const step = S[vote.step], card = el("div", { class: "card" }), verdict = el("p", {});
    card.append(el("h3", {}, stepButton(step), el("span", {}, step.merge.split(":")[0]), el("small", {}, step.rule), step.merge.includes(":") ? el("span", { class: "mono" }, line(step.merge.slice(step.merge.indexOf(":") + 1), 120)) : null));
    for (const ballot of vote.ballots) card.append(ballotRow(ballot, vote, updates));
    card.append(verdict);
    const unheard = vote.unheard.length ? el("p", {}, el("small", {}, vote.at === null ? "not done: " : vote.early ? "not waited for: " : "without a voice: "), el("span", { class: "names" }, stepButtons(vote.unheard, 12))) : null;
    if (unheard) card.append(unheard);
    box.append(card);
    updates.push((t) => {
      const reached = vote.at !== null && t >= vote.at;
      card.classList.toggle("later", t < step.entered);
      if (unheard) unheard.hidden = !reached && vote.at !== null;
      clear(verdict).append(reached ? el("span", { class: "what" }, `${secs(vote.at)}${vote.early ? ", before all branches had ended" : ""}: `) : vote.at === null ? "never reached a verdict" : "no verdict yet",
        ...(reached ? [vote.why || stateOf(step), el("br"), el("span", { class: "mono" }, line(vote.verdict, 400))] : vote.at === null && vote.why ? [`: ${vote.why}`] : []));
    });
  }
  say(section, D.votes.length ? "What each join decided and why; bars count the branches that were done by the time shown." : "");
  return (t) => updates.forEach((f) => f(t));
}
function ballotRow(ballot, vote, updates) {
  const many = ballot.steps.length > 24, bar = el("i", { class: "c-made" }), voters = vote.ballots.reduce((n, b) => n + b.steps.length, 0);
  const dots = ballot.steps.slice(0, many ? 8 : 24).map((i) => stepButton(S[i], S[i].name.match(/\d+$/)?.[0] || S[i].name)), count = el("span", { class: "num" });
  const row = el("div", { class: "ballot" }, el("span", { class: "mono" }, ballot.answer ? line(ballot.answer, 60) : "no answer in it", ballot.verified === null ? "" : ballot.verified ? " ✓ right" : " ✗ wrong"),
    el("span", { class: "dots" }, many ? el("span", { class: "tokens share" }, bar) : null, dots, many ? `+ ${num(ballot.steps.length - 8)} more` : null), count);
  updates.push((t) => {
    if (many) bar.style.width = `${Math.round(100 * ballot.steps.filter((i) => { const end = endOf(S[i]); return end !== null && end <= t; }).length / voters)} %`.replace(" ", "");
    const heard = ballot.steps.filter((i) => { const end = endOf(S[i]); return end !== null && end <= t; });
    dots.forEach((dot, k) => dot.classList.toggle("later", !heard.includes(ballot.steps[k])));
    count.textContent = ballot.answer ? plural(heard.length, "vote") : num(heard.length);
    row.classList.toggle("chosen", ballot.chosen && vote.at !== null && t >= vote.at);
  });
  return row;
}

function stopsPicture() {
  const section = byId("stops"), box = clear(section.querySelector(".picture")), found = [], updates = [];
  box.setAttribute("data-none", "Nothing was stopped, failed or was tried again.");
  for (const s of S) for (const [at, state, reason] of s.moves) if (state === "cancelled" || state === "failed") found.push({ at, what: state === "failed" ? "failed" : s.tries.length ? "stopped while it ran" : "given up before it ran", reason, step: s });
  for (const a of D.attempts) {
    const step = S[a.step];
    if (a.ending === "lost" || (a.ending === "failed" && step.tries[step.tries.length - 1] !== a)) found.push({ at: a.end, what: a.ending === "lost" ? "lost with a worker" : "failed, then tried again", reason: a.failure || a.stop_reason, step });
  }
  found.sort((a, b) => a.at - b.at);
  const groups = [];
  for (const each of found) {
    const last = groups.find((g) => g.what === each.what && g.reason === each.reason && Math.abs(g.at - each.at) < END / 500);
    if (last) last.steps.push(each.step); else groups.push({ ...each, steps: [each.step] });
  }
  for (const g of groups) {
    const tokens = g.steps.reduce((n, s) => n + s.tries.filter((a) => !a.read).reduce((m, a) => m + a.usage[2], 0), 0);
    const card = el("div", { class: "card" }, el("p", {}, el("span", { class: "what" }, `${secs(g.at)} · ${plural(g.steps.length, "step")} ${g.what}`), g.reason ? `: ${g.reason}` : "", tokens ? el("small", {}, ` (${num(tokens)} generated tokens that nobody read)`) : null),
      el("div", { class: "names" }, stepButtons([...new Set(g.steps.map((s) => s.i))], 16)));
    box.append(card);
    updates.push((t) => card.classList.toggle("later", t < g.at));
  }
  say(section, groups.length ? "Prunings, cancels and failures in order of time, each with its reason." : "");
  return (t) => updates.forEach((f) => f(t));
}
