// The list: a row for each run, a card on a phone; sorted, filtered and cut into pages by the server.

const COLUMNS = [["run", "run", ""], ["created", "when", "newest first"], ["status", "status", "by status"], ["planner", "planner", "by planner"], ["steps", "steps", "most steps"], ["tokens", "tokens", "most tokens"], ["seconds", "time", "longest"], ["text", "question", "by question"]];
const LEAST_FIRST = ["status", "planner", "text"];
const rows = new Map(); // by run: the row's element and its parts
const chosen = new Set(); // of runs to compare

function drawHead() {
  const head = byId("table").tHead.rows[0];
  head.append(make("th", undefined, {}, make("span", "compare", { class: "away" })));
  for (const [key, words, sorted] of COLUMNS) {
    const cell = make("th", undefined, { "data-key": key });
    if (!sorted) cell.textContent = words;
    else {
      const button = make("button", words, { type: "button", title: `Sort: ${sorted}` });
      button.addEventListener("click", () => sortBy(key, state.sort === key ? !state.up : LEAST_FIRST.includes(key)));
      cell.append(button);
      byId("sort").append(make("option", sorted, { value: key }));
    }
    head.append(cell);
  }
  head.append(make("th", undefined, {}, make("span", "actions", { class: "away" })));
}
function sortBy(key, up) {
  Object.assign(state, { sort: key, up, after: 0 });
  byId("sort").value = key;
  look();
}

function makeRow(row) {
  const mark = make("input", undefined, { type: "checkbox", "aria-label": "Compare this run" }), open = make("button", row.run.slice(0, 8), { type: "button", class: "open", title: `Pictures of run ${row.run}` });
  mark.addEventListener("change", () => { if (mark.checked) chosen.add(row.run); else chosen.delete(row.run); countChosen(); });
  open.addEventListener("click", () => show([row.run]));
  const parts = { badge: make("span", "", {}), question: make("span", "", { class: "question" }), answer: make("span", "", { class: "said" }), actions: make("td", undefined, { class: "col-actions" }), cells: {} };
  const element = make("tr", undefined, { "data-run": row.run }, make("td", undefined, { class: "col-mark" }, mark));
  for (const [key] of COLUMNS) {
    const cell = make("td", undefined, { class: `col-${key}` });
    if (key === "run") cell.append(open);
    if (key === "status") cell.append(parts.badge);
    if (key === "text") cell.append(parts.question, parts.answer);
    parts.cells[key] = cell;
    element.append(cell);
  }
  element.append(parts.actions);
  return { element, parts, mark, open };
}
function drawRow(row, live) {
  if (!rows.has(row.run)) rows.set(row.run, makeRow(row));
  const { element, parts, mark, open } = rows.get(row.run), { cells } = parts;
  mark.checked = chosen.has(row.run);
  open.disabled = mark.disabled = menu !== null && !menu.journal;
  element.className = live ? "going" : "";
  parts.badge.className = `badge ${row.status}`;
  setText(parts.badge, row.status);
  setText(cells.created, when(row.created));
  cells.created.title = row.created;
  setText(cells.planner, row.planner);
  setText(cells.steps, live ? `${row.done}/${row.steps}` : row.steps === null ? "" : number(row.steps));
  cells.steps.title = live ? "done / planned so far" : "";
  setText(cells.tokens, !live && row.status === "running" ? "" : number(row.tokens));
  setText(cells.seconds, seconds(row.seconds));
  setText(parts.question, row.text);
  setText(parts.answer, row.answer);
  parts.answer.className = `said ${row.status === "failed" ? "bad" : row.status === "done" ? "" : "soft"}`;
  drawActions(row, live, parts.actions);
  return element;
}
function drawActions(row, live, cell) {
  const verbs = live ? [row.status === "paused" ? "resume" : "pause", "cancel"] : [];
  if (cell.dataset.verbs === verbs.join()) return;
  cell.dataset.verbs = verbs.join();
  cell.replaceChildren(...verbs.map((verb) => {
    const button = make("button", verb, { type: "button", "data-verb": verb });
    button.addEventListener("click", () => order(row.run, verb));
    return button;
  }));
}

function draw() {
  const live = new Map(seen.now.map((row) => [row.run, row])), past = new Map(seen.past.map((row) => [row.run, row]));
  const elements = seen.order.map((run) => drawRow(live.get(run) || past.get(run), live.has(run)));
  const body = byId("table").tBodies[0];
  if (elements.length !== body.children.length || elements.some((each, k) => body.children[k] !== each)) body.replaceChildren(...elements);
  for (const run of rows.keys()) if (!live.has(run) && !past.has(run) && !chosen.has(run)) rows.delete(run);
  for (const cell of byId("table").tHead.rows[0].cells) if (cell.dataset.key === state.sort) cell.setAttribute("aria-sort", state.up ? "ascending" : "descending"); else cell.removeAttribute("aria-sort");
  const under = seen.counts.now, over = number(seen.counts.past) + (seen.more ? " or more" : "");
  setText(byId("count"), `${number(under)} under way, ${over} past`);
  byId("count").className = `badge ${under ? "running" : ""}`;
  setText(byId("workers"), seen.workers.map((each) => `${each.name}: ${each.slots} slots`).join(" · "));
  byId("list").hidden = false;
  drawPager();
  drawNone();
  drawQuestions();
}
function drawPager() {
  const first = seen.total ? state.after + 1 : 0, last = Math.min(seen.total, state.after + PAGE);
  setText(byId("range"), `${number(first)}–${number(last)} of ${number(seen.total)}${seen.more ? " or more" : ""}`);
  byId("newer").disabled = state.after === 0;
  byId("older").disabled = last >= seen.total;
  document.querySelector(".pager").hidden = seen.total <= PAGE && state.after === 0;
  byId("table").hidden = seen.total === 0;
}
function drawNone() {
  const none = byId("none"), filtered = byId("filter").value.trim() !== "", empty = seen.total === 0;
  none.hidden = !empty;
  setText(none, filtered ? "No run has this in it." : state.scope === "here"
    ? "Nothing has been asked since this server started. Ask above, or from a program. Earlier runs, and those of other programs, stand under “all runs”."
    : "No run was written down.");
  if (!filtered && state.scope === "here" && byId("first").dataset.empty !== String(empty)) { // open while there is nothing else to begin with
    byId("first").dataset.empty = String(empty);
    byId("first").open = empty;
  }
}
function countChosen() {
  byId("compare").disabled = chosen.size !== 2;
  setText(byId("compare"), chosen.size > 2 ? "Choose only two" : "Compare two");
}

byId("filter").addEventListener("input", () => { state.after = 0; look(); });
byId("scope").addEventListener("change", (e) => { state.scope = e.target.value; state.after = 0; look(); });
byId("sort").addEventListener("change", (e) => sortBy(e.target.value, LEAST_FIRST.includes(e.target.value)));
byId("newer").addEventListener("click", () => { state.after = Math.max(0, state.after - PAGE); look(); });
byId("older").addEventListener("click", () => { state.after += PAGE; look(); });
byId("compare").addEventListener("click", () => show([...chosen]));
drawHead();
