// The ask box, and how a program asks.

async function fillMenu() {
  const answer = await ask("/runs/new");
  if (answer === null || !answer.ok) return;
  menu = await answer.json();
  const planner = byId("planner"), model = byId("model");
  planner.replaceChildren(...menu.planners.map((each) => make("option", each.name, { value: each.name })));
  planner.value = menu.planner;
  model.replaceChildren(...menu.models.map((name) => make("option", name, { value: name })));
  byId("models").hidden = menu.models.length < 2;
  byId("ask").hidden = !menu.planners.length;
  explain();
  showFirst();
}
function explain() {
  const chosen = menu.planners.find((each) => each.name === byId("planner").value);
  if (!chosen) return;
  byId("options").placeholder = chosen.options.includes("n") ? "such as n=8" : "may be left out";
  byId("about").replaceChildren(chosen.about.replaceAll("`", ""), ...(chosen.options.length ? [make("br"), make("small", `Options, with commas between: ${chosen.options.join(", ")}. Policies follow with +, as in n=8+consensus.`)] : []));
}
function strategy() {
  const options = byId("options").value.trim(), planner = byId("planner").value;
  return options === "" ? planner : options.startsWith("+") ? planner + options : `${planner}:${options}`;
}
async function send() {
  const question = byId("question"), button = byId("send");
  if (!question.value.trim()) { question.focus(); return; }
  button.disabled = true;
  const model = byId("models").hidden ? "" : byId("model").value;
  const answer = await ask("/runs", { text: question.value, planner: strategy(), model }), problem = await wrong(answer);
  button.disabled = false;
  setText(byId("problem"), problem);
  if (problem) return;
  question.value = "";
  state.after = 0;
  const { run } = await answer.json();
  await look();
  if (menu.journal) await show([run]);
}

// -- the first request of a program
function showFirst() {
  const name = "plait/sample:n=4", usable = menu.planners.some((each) => each.name === "sample");
  const model = usable ? name : `plait/${menu.planner}`, text = "How many r are in strawberry?";
  const key = menu.keys ? " -H \"authorization: Bearer $PLAIT_KEY\"" : "";
  setText(byId("address"), `${location.origin}/v1`);
  setText(byId("curl"), `curl ${location.origin}/v1/chat/completions${key} \\\n  -H "content-type: application/json" \\\n  -d '{"model": "${model}", "messages": [{"role": "user", "content": "${text}"}]}'`);
  setText(byId("python"), `from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=${menu.keys ? "KEY" : "\"none\""})\nanswer = client.chat.completions.create(\n    model="${model}", messages=[{"role": "user", "content": "${text}"}]\n)\nprint(answer.choices[0].message.content)`);
}
async function copy(button) {
  const source = byId(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch { // only pages of https and of this machine may: the text is marked, to be copied by hand
    getSelection().selectAllChildren(source);
    button.textContent = "Marked";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

byId("ask").addEventListener("submit", (e) => { e.preventDefault(); send(); });
byId("question").addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) send(); });
byId("planner").addEventListener("change", () => { byId("options").value = ""; explain(); });
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button)));
