// Of a server's page alone: a run that goes on is asked for again until it is over.

function grow(data) {
  const follows = view.t >= END, selected = view.sel >= 0 ? S[view.sel].id : null, words = byId("search").value;
  adopt(data);
  haystack = null;
  if (follows) view.t = END;
  view.sel = selected === null ? -1 : S.findIndex((s) => s.id === selected);
  headOfPage();
  activityPicture();
  if (words) search(words);
  draw();
  if (view.sel >= 0) select(view.sel, true);
}
async function follow(url) {
  let wait = 0;
  while (["loading", "unfinished", "running"].includes(D.status)) {
    await new Promise((f) => setTimeout(f, wait));
    if (document.hidden) continue;
    const began = performance.now(), answer = await fetch(url).catch(() => null);
    if (answer === null || !answer.ok) { wait = Math.min(30000, 2 * wait); if (answer !== null && answer.status === 404) return; continue; }
    grow(await answer.json());
    document.documentElement.dataset.grown = String(S.length);
    wait = Math.max(500, 5 * (performance.now() - began)); // a large run is asked for less often
  }
}
follow(document.documentElement.dataset.live);
