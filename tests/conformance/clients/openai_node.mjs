// The `openai` package for Node, and Vercel's AI SDK over it.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { z } from "zod";
import { run, same } from "./expected.mjs";

const [base, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const ask = [{ role: "user", content: "hello" }];
const City = z.object({ name: z.string(), people: z.number() });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const compatible = createOpenAICompatible({ name: "plait", baseURL: base, apiKey: "none", supportsStructuredOutputs: true });
const weather = tool({ description: "Tell the weather.", inputSchema: z.object({ city: z.string() }), execute: async () => "sun" });

function runner(stream) {
  return client.chat.completions.runTools({
    model, stream, messages: [{ role: "user", content: "the weather?" }],
    tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: () => "sun" } }],
  });
}

async function text(said) {
  let whole = "";
  for await (const piece of said) whole += piece;
  return whole;
}

const checks = {
  chat: async () => same((await client.chat.completions.create({ model, messages: ask })).choices[0].message.content, "All is fine."),
  chat_streamed: async () => {
    let whole = "";
    for await (const chunk of await client.chat.completions.create({ model, messages: ask, stream: true }))
      whole += chunk.choices[0]?.delta?.content ?? "";
    same(whole, "All is fine.");
  },
  run_tools: async () => same(await runner(false).finalContent(), "It is sunny."),
  run_tools_streamed: async () => same(await runner(true).finalContent(), "It is sunny."),
  parse: async () => {
    const said = await client.chat.completions.parse({ model, messages: ask, response_format: zodResponseFormat(City, "city") });
    same(said.choices[0].message.parsed, { name: "Rome", people: 3 });
  },
  models: async () => same((await client.models.list()).data.some((each) => each.id === model), true),
  responses: async () => same((await client.responses.create({ model, input: "hello" })).output_text, "All is fine."),
  ai_text: async () => same((await generateText({ model: compatible(model), prompt: "hello", maxRetries: 0 })).text, "All is fine."),
  ai_stream: async () => same(await text(streamText({ model: compatible(model), prompt: "hello", maxRetries: 0 }).textStream), "All is fine."),
  ai_object: async () =>
    same((await generateObject({ model: compatible(model), schema: City, prompt: "a city", maxRetries: 0 })).object, { name: "Rome", people: 3 }),
  ai_partial_states: async () => {
    const names = ["first", "second", "third", "fourth", "fifth", "sixth"];
    const schema = z.object(Object.fromEntries(names.map((name) => [name, z.string()])));
    const said = streamObject({ model: compatible(model), schema, prompt: "SLOWLY a trip", maxRetries: 0 });
    const states = new Set();
    for await (const partial of said.partialObjectStream) states.add(JSON.stringify(partial));
    same(states.size >= (process.env.CONFORMANCE_REAL ? 1 : 4), true);
  },
  ai_tools_over_steps: async () => {
    const said = await generateText({
      model: compatible(model), tools: { weather }, stopWhen: stepCountIs(3), prompt: "the weather?", maxRetries: 0,
    });
    same([said.text, said.steps.length], ["It is sunny.", 2]);
  },
  ai_openai_chat: async () => {
    const chat = createOpenAI({ baseURL: base, apiKey: "none" }).chat(model);
    same((await generateText({ model: chat, tools: { weather }, toolChoice: "required", prompt: "hello", maxRetries: 0 })).toolCalls.length, 1);
  },
  ai_openai_responses: async () => {
    const responses = createOpenAI({ baseURL: base, apiKey: "none" }).responses(model);
    same((await generateText({ model: responses, prompt: "hello", maxRetries: 0 })).text, "All is fine.");
  },
  ai_completion: async () =>
    same((await generateText({ model: compatible.completionModel(model), prompt: "hello", maxRetries: 0 })).text.trim(), "All is fine."),
};

const require = createRequire(import.meta.url);
const version = ["openai", "ai"].map((name) => {
  const path = require.resolve(name).replace(/(node_modules\/[^/]+)\/.*/, "$1");
  return `${name} ${JSON.parse(readFileSync(`${path}/package.json`)).version}`;
}).join(", ");
await run(checks, version);
