// Mastra.
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { readFileSync } from "node:fs";
import { z } from "zod";
import { run, same } from "./expected.mjs";

const [base, model] = process.argv.slice(2);
let asked = 0;
const weather = createTool({
  id: "weather", description: "Tell the weather.", inputSchema: z.object({ city: z.string() }),
  execute: async () => { asked += 1; return { sky: "sun" }; },
});

function helper(tools = {}) {
  const served = { id: `local/${model}`, url: base, apiKey: "none" };
  return new Agent({ id: "helper", name: "helper", instructions: "Help.", model: served, tools, maxRetries: 0 });
}

async function text(stream) {
  let whole = "";
  for await (const piece of stream) whole += piece;
  return whole;
}

const checks = {
  text: async () => same((await helper().generate("hello")).text, "All is fine."),
  streamed: async () => same(await text((await helper().stream("hello")).textStream), "All is fine."),
  tools: async () => {
    asked = 0;
    same((await helper({ weather }).generate("the weather in Rome?")).text, "It is sunny.");
    same(asked > 0, true);
  },
  tools_streamed: async () => {
    asked = 0;
    same(await text((await helper({ weather }).stream("the weather in Rome?")).textStream), "It is sunny.");
    same(asked > 0, true);
  },
  structured_output: async () => {
    const schema = z.object({ name: z.string(), people: z.number() });
    same((await helper().generate("a city", { structuredOutput: { schema } })).object, { name: "Rome", people: 3 });
  },
};
const { version } = JSON.parse(readFileSync(new URL("./node_modules/@mastra/core/package.json", import.meta.url)));
await run(checks, version);
process.exit(0);
