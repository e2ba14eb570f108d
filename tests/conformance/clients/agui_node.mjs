// AG-UI's client for Node: it checks the order of events by itself.
import { HttpAgent } from "@ag-ui/client";
import { readFileSync } from "node:fs";
import { exactly, run, same } from "./expected.mjs";

const [base, model] = process.argv.slice(2);
const url = base.replace(/\/v1$/, "/agui");
const weather = { name: "weather", description: "Tell it.", parameters: { type: "object", properties: { city: { type: "string" } } } };

async function asked(content, more = {}, messages = []) {
  const agent = new HttpAgent({ url, headers: { authorization: "Bearer none" }, initialMessages: [...messages, { id: "1", role: "user", content }] });
  const events = [];
  await agent.runAgent({ forwardedProps: { model }, ...more }, { onEvent: ({ event }) => void events.push(event.type) });
  return { agent, events };
}

const checks = {
  answer: async () => {
    const { agent, events } = await asked("hello");
    same(agent.messages.at(-1).content, "All is fine.");
    exactly([events[0], events.at(-1)], ["RUN_STARTED", "RUN_FINISHED"]);
  },
  without_a_model_named: async () => same((await asked("hello", { forwardedProps: {} })).agent.messages.at(-1).content, "All is fine."),
  branches: async () => {
    const { agent, events } = await asked("SAY<answer: 42>", { forwardedProps: { model: `plait/sample:n=3@${model}` } });
    same(agent.messages.at(-1).content, "42");
    exactly(events.filter((type) => type === "REASONING_MESSAGE_START").length, 3);
  },
  tools: async () => {
    const { agent } = await asked("the weather?", { tools: [weather] });
    const call = agent.messages.at(-1).toolCalls[0];
    exactly(call?.function.name, "weather");
    agent.addMessage({ id: "3", role: "tool", toolCallId: call.id, content: "sun" });
    await agent.runAgent({ forwardedProps: { model }, tools: [weather] });
    same(agent.messages.at(-1).content, "It is sunny.");
  },
  a_mistake: async () => {
    try {
      await asked("hello", { forwardedProps: { model: "nobody" } });
    } catch (error) {
      if (/nobody|404/.test(error.message)) return;
      throw error;
    }
    throw new Error("no error");
  },
};
const { version } = JSON.parse(readFileSync(new URL("node_modules/@ag-ui/client/package.json", import.meta.url)));
await run(checks, version);
process.exit(0);
