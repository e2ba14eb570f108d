// The runs of a server: those under way and those past, their questions, and the pictures of one or two of them.
// Text from runs reaches the page through textContent alone.

const byId = (id) => document.getElementById(id);
const rows = new Map(); // by run: the row's element and what it shows
const chosen = new Set();
let seen = { now: [], past: [], workers: [] }, shown = [];

function make(tag, text, attrs) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attrs || {})) made.setAttribute(key, value);
  return made;
}
async function ask(path, body) {
  const given = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  return fetch(path, given).catch(() => null);
}
async function order(run, verb, body) {
  const answer = await ask(`/runs/${run}/${verb}`, body || {});
  if (answer !== null && !answer.ok) byId("count").textContent = (await answer.json()).error.message;
  await look();
}

// -- the table
function cells(row, live) {
  const steps = live ? `${row.done}/${row.steps}` : "", seconds = live ? row.seconds.toFixed(1) : "";
  return [row.run.slice(0, 8), row.status, row.planner, steps, String(row.tokens), seconds, row.text];
}
function drawRow(row, live) {
  let found = rows.get(row.run);
  if (!found) {
    const element = make("tr", undefined, { "data-run": row.run }), mark = make("input", undefined, { type: "checkbox", "aria-label": "compare" });
    mark.addEventListener("change", () => { if (mark.checked) chosen.add(row.run); else chosen.delete(row.run); byId("compare").disabled = chosen.size !== 2; });
    element.append(make("td"), ...cells(row, live).map((_, k) => make("td", "", k === 6 ? { class: "text" } : {})), make("td"));
    element.firstChild.append(mark);
    const open = make("button", "", { type: "button", class: "open" });
    open.addEventListener("click", () => show([row.run]));
    element.children[1].append(open);
    found = { element, said: [] , live: null };
    rows.set(row.run, found);
  }
  cells(row, live).forEach((text, k) => {
    if (found.said[k] === text) return;
    if (k === 0) found.element.children[1].firstChild.textContent = text; else found.element.children[k + 1].textContent = text;
  });
  found.said = cells(row, live);
  if (found.live !== live) {
    const last = found.element.lastChild;
    last.replaceChildren();
    if (live) for (const verb of ["cancel", row.status === "paused" ? "resume" : "pause"]) {
      const button = make("button", verb, { type: "button", "data-verb": verb });
      button.addEventListener("click", () => order(row.run, button.textContent));
      last.append(button);
    }
    found.live = live;
  } else if (live) found.element.lastChild.lastChild.textContent = row.status === "paused" ? "resume" : "pause";
  return found.element;
}
function draw() {
  const words = byId("filter").value.trim().toLowerCase(), body = byId("table").tBodies[0];
  const all = [...seen.now.map((row) => [row, true]), ...seen.past.map((row) => [row, false])];
  const kept = all.filter(([row]) => !words || [row.run, row.status, row.planner, row.text].join(" ").toLowerCase().includes(words));
  const elements = kept.map(([row, live]) => drawRow(row, live));
  if (elements.length !== body.children.length || elements.some((each, k) => body.children[k] !== each)) body.replaceChildren(...elements);
  byId("count").textContent = `${seen.now.length} under way, ${seen.past.length} past`;
  byId("workers").textContent = seen.workers.map((each) => `${each.name}: ${each.slots} slots`).join(" · ");
  asks();
}
function asks() {
  const box = byId("asks"), open = seen.now.flatMap((row) => row.questions.map((each) => [row.run, each]));
  const ids = open.map(([, each]) => each.id).join(" ");
  if (box.dataset.ids === ids) return; // somebody may be typing
  box.dataset.ids = ids;
  box.replaceChildren(...open.map(([run, each]) => {
    const form = make("form"), choices = each.choices && each.choices.length ? each.choices : null;
    const field = choices ? make("select") : make("input", undefined, { type: "text", autocomplete: "off" });
    for (const choice of choices || []) field.append(make("option", typeof choice === "string" ? choice : JSON.stringify(choice)));
    form.append(make("b", each.text), field, make("button", "Answer"));
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      order(run, "answer", { question: each.id, value: choices ? choices[field.selectedIndex] : field.value });
    });
    return form;
  }));
}

// -- pictures
function show(runs) {
  shown = runs;
  byId("shut").hidden = !runs.length;
  byId("frames").replaceChildren(...runs.map((run) => make("iframe", undefined, { src: `/runs/${run}/page`, title: `run ${run}` })));
}

// -- looking again
async function look() {
  const answer = await ask("/runs");
  byId("login").hidden = answer === null || answer.status !== 401;
  if (answer !== null && answer.ok) { seen = await answer.json(); draw(); }
  document.documentElement.dataset.ready = "yes";
}
async function looking() {
  for (;;) {
    if (!document.hidden && byId("login").hidden) await look();
    await new Promise((f) => setTimeout(f, 1000));
  }
}
byId("filter").addEventListener("input", draw);
byId("compare").addEventListener("click", () => show([...chosen]));
byId("shut").addEventListener("click", () => show([]));
byId("login").addEventListener("submit", async (e) => {
  e.preventDefault();
  const answer = await ask("/login", { key: byId("key").value });
  byId("key").value = "";
  byId("refused").textContent = answer !== null && answer.ok ? "" : "this key is not known here";
  await look();
});
looking();
