// Plays an agent of A2A 0.3 with @a2a-js/sdk 0.3.14 and prints the URL at which it listens.
// A2A_JS_03 is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const load = createRequire(process.env.A2A_JS_03 + "/package.json");
const express = load("express");
const { DefaultRequestHandler, InMemoryTaskStore } = load("@a2a-js/sdk/server");
const { jsonRpcHandler, restHandler, agentCardHandler, UserBuilder } = load("@a2a-js/sdk/server/express");
const { BINDING } = process.env;

const pause = (ms) => new Promise((r) => setTimeout(r, ms));
const canceled = new Set();

const executor = {
  async execute(context, bus) {
    const { taskId, contextId } = context;
    const text = context.userMessage.parts.map((p) => p.text ?? "").join("");
    const ids = { taskId, contextId };
    const status = (state, said, final = false) => bus.publish({
      kind: "status-update", ...ids, final,
      status: { state, timestamp: new Date().toISOString(), ...(said && { message: { kind: "message", messageId: "said-" + text, role: "agent", ...ids, parts: [{ kind: "text", text: said }] } }) },
    });
    if (text === "direct") {
      bus.publish({ kind: "message", messageId: "d1", role: "agent", contextId, parts: [{ kind: "text", text: "at once" }] });
      bus.finished();
      return;
    }
    bus.publish(context.task ?? { kind: "task", id: taskId, contextId, status: { state: "submitted", timestamp: new Date().toISOString() }, history: [context.userMessage] });
    if (text === "buy") {
      status("input-required", "which one?", true);
      bus.finished();
      return;
    }
    status("working", "working");
    for (let i = 0; i < (text === "forever" ? 400 : 6); i++) {
      if (canceled.has(taskId)) {
        status("canceled", undefined, true);
        bus.finished();
        return;
      }
      await pause(50);
    }
    bus.publish({ kind: "artifact-update", ...ids, append: false, lastChunk: true, artifact: { artifactId: "a1", name: "Answer", parts: [{ kind: "text", text: "you said: " + text }, { kind: "data", data: { n: 1 } }] } });
    status("completed", "done", true);
    bus.finished();
  },
  async cancelTask(taskId) { canceled.add(taskId); },
};

const app = express();
const server = app.listen(0, "127.0.0.1", () => {
  const url = "http://127.0.0.1:" + server.address().port;
  const card = {
    name: "JS", description: "an agent", version: "1", protocolVersion: "0.3.0", url: url + "/a2a", preferredTransport: BINDING,
    capabilities: { streaming: true }, defaultInputModes: ["text/plain"], defaultOutputModes: ["text/plain"],
    skills: [{ id: "s", name: "s", description: "d", tags: ["t"] }],
  };
  const handler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
  const options = { requestHandler: handler, userBuilder: UserBuilder.noAuthentication };
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: handler }));
  app.use("/a2a", BINDING === "JSONRPC" ? jsonRpcHandler(options) : restHandler(options));
  console.log(url);
});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
