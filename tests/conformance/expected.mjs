// What a check expects of a model's words, as expected.py has it.
const real = Boolean(process.env.CONFORMANCE_REAL);
let texts = [];

function fits(got, wanted) {
  if (real && typeof wanted === "string" && typeof got === "string" && got.trim()) return Boolean(texts.push(got.trim()));
  if (real && typeof wanted === "number" && typeof got === "number") return true;
  if (wanted === null || typeof wanted !== "object") return got === wanted;
  const keys = Object.keys(wanted);
  return typeof got === "object" && got !== null && Object.keys(got).length === keys.length && keys.every((key) => fits(got[key], wanted[key]));
}

export function same(got, wanted) {
  if (!fits(got, wanted)) throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(wanted)}`);
}

export function exactly(got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(wanted)}`);
}

export function holds(text, part) {
  if (real ? !text : !text.includes(part)) throw new Error(`${part} is not in ${text}`);
}

export async function run(checks, version) {
  for (const [check, ask] of Object.entries(checks)) {
    let problem = "";
    texts = [];
    try {
      await ask();
    } catch (error) {
      problem = `${error.name}: ${error.message} ${error.stderr ?? ""}`.trim().slice(0, 600);
    }
    console.log("CHECK " + JSON.stringify({ check, problem, version, texts }));
  }
}
