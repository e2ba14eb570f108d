// What waits for a person, the pictures of one or two runs, and looking again.

function drawQuestions() {
  const box = byId("asks"), ids = seen.questions.map((each) => each.id).join(" ");
  if (box.dataset.ids === ids) return; // somebody may be typing
  box.dataset.ids = ids;
  box.replaceChildren(...seen.questions.map((each) => each.call ? approval(each) : question(each)));
}
function card(each, form, ...fields) {
  const tell = make("p", "", { class: "bad", role: "status" });
  form.append(make("p", undefined, {}, make("b", each.text), " ", make("small", `asked by ${each.step.split(":").pop()} of run ${each.run.slice(0, 8)}`, { class: "soft" })), ...fields, tell);
  return (value) => order(each.run, "answer", { question: each.id, value }, tell);
}
function question(each) {
  const choices = each.choices.length ? each.choices : null, form = make("form");
  const field = choices ? make("select", undefined, { "aria-label": "Answer" }) : make("input", undefined, { type: "text", autocomplete: "off", "aria-label": "Answer" });
  for (const choice of choices || []) field.append(make("option", typeof choice === "string" ? choice : JSON.stringify(choice)));
  const answer = card(each, form, make("div", undefined, { class: "line" }, field, make("button", "Answer", { class: "main" })));
  form.addEventListener("submit", (e) => { e.preventDefault(); answer(choices ? choices[field.selectedIndex] : field.value); });
  return form;
}
// Whether a call may be made: allowed as it is, allowed with other arguments, or refused with a reason.
function approval(each) {
  const form = make("form", undefined, { class: "approval" }), before = JSON.stringify(each.call.args, null, 1);
  const args = make("textarea", before, { rows: Math.min(8, before.split("\n").length), "aria-label": "Arguments of the call", spellcheck: "false" });
  const allow = make("button", "Allow", { class: "main", type: "button", "data-verb": "allow" }), refuse = make("button", "Refuse", { type: "button", "data-verb": "refuse" });
  const reason = make("input", undefined, { type: "text", placeholder: "why not (may be left out)", "aria-label": "Reason" });
  const answer = card(each, form, make("p", `It wants to call ${each.call.tool} with these arguments. You may change them.`, { class: "soft" }), args, make("div", undefined, { class: "line" }, allow, refuse, reason));
  form.addEventListener("submit", (e) => e.preventDefault());
  refuse.addEventListener("click", () => answer({ approved: false, reason: reason.value }));
  allow.addEventListener("click", () => {
    if (args.value === before) { answer(true); return; }
    try { answer({ args: JSON.parse(args.value) }); } catch { setText(form.lastChild, "the arguments are not JSON"); }
  });
  return form;
}

// -- pictures
async function show(runs) {
  for (let tries = 0; tries < 20 && runs.length; tries++) { // a run that was just asked for may not be written yet
    const answer = await ask(`/runs/${runs[runs.length - 1]}/data`), problem = await wrong(answer);
    if (!problem) break;
    if (answer === null || answer.status !== 404 || tries === 19) { setText(byId("notice"), problem); return; }
    await new Promise((f) => setTimeout(f, 150));
  }
  byId("pictures").hidden = !runs.length;
  setText(byId("drawn"), runs.length > 1 ? "Two runs, side by side" : `Run ${(runs[0] || "").slice(0, 8)}`);
  byId("frames").replaceChildren(...runs.map((run) => make("iframe", undefined, { src: `/runs/${run}/page`, title: `Pictures of run ${run}` })));
  if (runs.length) byId("pictures").scrollIntoView({ block: "start" });
}

// -- looking again
let asked = 0; // of several answers that come in another order, the last one asked for counts
async function look() {
  const mine = ++asked, query = new URLSearchParams({ ...state, words: byId("filter").value, limit: PAGE });
  const answer = await ask(`/runs?${query}`);
  if (mine !== asked) return;
  const strange = answer !== null && answer.status === 401;
  byId("login").hidden = !strange;
  if (strange) for (const part of ["ask", "list", "first"]) byId(part).hidden = true;
  if (answer === null) setText(byId("notice"), "the server does not answer");
  else if (answer.ok) {
    if (byId("notice").textContent === "the server does not answer") setText(byId("notice"), "");
    const data = await answer.json();
    if (mine !== asked) return;
    seen = data;
    if (state.after >= seen.total && state.after) { state.after = PAGE * Math.floor(Math.max(0, seen.total - 1) / PAGE); return look(); }
    byId("first").hidden = false;
    byId("logout").hidden = !data.session;
    if (menu === null) await fillMenu();
    draw();
  } else if (!strange) setText(byId("notice"), await wrong(answer));
  document.documentElement.dataset.ready = "yes";
}
async function looking() {
  for (;;) {
    if (!document.hidden && byId("login").hidden) await look();
    await new Promise((f) => setTimeout(f, 1000));
  }
}
byId("shut").addEventListener("click", () => show([]));
byId("login").addEventListener("submit", async (e) => {
  e.preventDefault();
  const answer = await ask("/login", { key: byId("key").value });
  byId("key").value = "";
  setText(byId("refused"), answer !== null && answer.ok ? "" : "this key is not known here");
  menu = null; // what may be asked for is another's
  await look();
});
byId("logout").addEventListener("click", async () => {
  await ask("/logout", {});
  location.reload();
});
looking();
