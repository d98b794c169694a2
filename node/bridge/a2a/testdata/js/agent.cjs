// Plays an A2A agent with @a2a-js/sdk and prints the URL at which it listens.
// A2A_JS is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const load = createRequire(process.env.A2A_JS + "/package.json");
const express = load("express");
const { AgentCard, Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent, Message } = load("@a2a-js/sdk");
const { DefaultRequestHandler, InMemoryTaskStore, AgentEvent } = load("@a2a-js/sdk/server");
const { jsonRpcHandler, restHandler, agentCardHandler, UserBuilder } = load("@a2a-js/sdk/server/express");
const { BINDING } = process.env;

const pause = (ms) => new Promise((r) => setTimeout(r, ms));
const canceled = new Set();

const executor = {
  async execute(context, bus) {
    const { taskId, contextId } = context;
    const text = context.userMessage.parts.map((p) => p.content?.value ?? "").join("");
    const ids = { taskId, contextId };
    const status = (state, said) => bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({
      ...ids, status: { state, timestamp: new Date().toISOString(), ...(said && { message: { messageId: "said-" + text, role: "ROLE_AGENT", ...ids, parts: [{ text: said }] } }) },
    })));
    if (text === "direct") {
      bus.publish(AgentEvent.message(Message.fromJSON({ messageId: "d1", role: "ROLE_AGENT", contextId, parts: [{ text: "at once" }] })));
      bus.finished();
      return;
    }
    bus.publish(AgentEvent.task(context.task ?? Task.fromJSON({ id: taskId, contextId, status: { state: "TASK_STATE_SUBMITTED", timestamp: new Date().toISOString() }, history: [Message.toJSON(context.userMessage)] })));
    if (text === "buy") {
      status("TASK_STATE_INPUT_REQUIRED", "which one?");
      bus.finished();
      return;
    }
    status("TASK_STATE_WORKING", "working");
    for (let i = 0; i < (text === "forever" ? 400 : 6); i++) {
      if (canceled.has(taskId)) {
        status("TASK_STATE_CANCELED");
        bus.finished();
        return;
      }
      await pause(50);
    }
    bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON({ ...ids, append: false, lastChunk: true, artifact: { artifactId: "a1", name: "Answer", parts: [{ text: "you said: " + text }, { data: { n: 1 } }] } })));
    status("TASK_STATE_COMPLETED", "done");
    bus.finished();
  },
  async cancelTask(taskId) { canceled.add(taskId); },
};

const app = express();
const server = app.listen(0, "127.0.0.1", () => {
  const url = "http://127.0.0.1:" + server.address().port;
  const card = AgentCard.fromJSON({
    name: "JS", description: "an agent", version: "1", capabilities: { streaming: true }, defaultInputModes: ["text/plain"], defaultOutputModes: ["text/plain"],
    skills: [{ id: "s", name: "s", description: "d", tags: ["t"] }],
    supportedInterfaces: [{ url: url + "/a2a", protocolBinding: BINDING, protocolVersion: "1.0" }],
  });
  const handler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
  const options = { requestHandler: handler, userBuilder: UserBuilder.noAuthentication };
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: handler }));
  app.use("/a2a", BINDING === "JSONRPC" ? jsonRpcHandler(options) : restHandler(options));
  console.log(url);
});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
