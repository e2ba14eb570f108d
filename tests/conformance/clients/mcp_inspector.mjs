// The command line of the MCP inspector, to `plait mcp`, whose address is given in the place of a server of models.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { exactly, holds, run } from "./expected.mjs";

const [base] = process.argv.slice(2);
const folder = new URL("node_modules/@modelcontextprotocol/inspector/", import.meta.url).pathname;
const about = JSON.parse(readFileSync(`${folder}package.json`));

function ask(...words) {
  const command = [`${folder}${about.bin["mcp-inspector"]}`, "--cli", base, "--transport", "http", ...words];
  const told = execFileSync(process.execPath, command, { encoding: "utf8", timeout: 120000 });
  return JSON.parse(told.slice(told.indexOf("{")));
}

function text(result) {
  if (result.isError) throw new Error(JSON.stringify(result.content));
  return result.content.map((part) => part.text ?? "").join("");
}

const checks = {
  tools_are_listed: () => exactly(ask("--method", "tools/list").tools.some((tool) => tool.name === "solve"), true),
  solve: () => holds(text(ask("--method", "tools/call", "--tool-name", "solve", "--tool-arg", "question=hello")), "All is fine."),
  solve_by_a_vote: () =>
    holds(
      text(ask("--method", "tools/call", "--tool-name", "solve", "--tool-arg", "question=SAY<answer: 42>", "planner=sample:n=3")),
      "3 of 3 votes",
    ),
};
await run(checks, about.version);
