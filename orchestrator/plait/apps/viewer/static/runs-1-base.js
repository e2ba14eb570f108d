// The page of a server's runs: what all its parts share. Text from runs reaches the page through textContent alone.

const byId = (id) => document.getElementById(id);
const PAGE = 25; // runs on one page of the list
const state = { scope: "here", sort: "created", up: false, after: 0 };
let seen = null; // the last answer of GET /runs
let menu = null; // the answer of GET /runs/new: what may be asked for

function make(tag, text, attrs, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attrs || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

async function ask(path, body) {
  const given = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  return fetch(path, given).catch(() => null);
}
// What went wrong with an answer, in the server's words; empty if nothing did.
async function wrong(answer) {
  if (answer === null) return "the server does not answer";
  if (answer.ok) return "";
  try { return (await answer.json()).error.message; } catch { return `the server answered ${answer.status}`; }
}
async function order(run, verb, body, tell) {
  setText(tell || byId("notice"), await wrong(await ask(`/runs/${run}/${verb}`, body || {})));
  await look();
}

function when(iso) {
  const at = new Date(iso), now = new Date();
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  if (at.toDateString() === now.toDateString()) return clock;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short", ...(at.getFullYear() === now.getFullYear() ? {} : { year: "numeric" }) })}, ${clock.slice(0, 5)}`;
}
function seconds(n) {
  if (n === null || n === undefined) return "";
  if (n < 1) return n === 0 ? "< 1 s" : `${n.toFixed(2)} s`;
  return n < 600 ? `${Number.isInteger(n) ? n : n.toFixed(1)} s` : `${Math.floor(n / 60)} min`;
}
function number(n) { return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f"); }
