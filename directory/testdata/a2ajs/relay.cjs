// Plays a client of A2A with @a2a-js/sdk against an agent behind the relay at URL and prints what it saw, as JSON.
// A2A_JS is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const load = createRequire(process.env.A2A_JS + "/package.json");
const { AgentCard, SendMessageRequest, TaskState } = load("@a2a-js/sdk");
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = load("@a2a-js/sdk/client");
const { URL: base, BINDING } = process.env;

const request = (messageId, text, configuration) =>
  SendMessageRequest.fromJSON({ message: { messageId, contextId: "ctx-js", role: "ROLE_USER", parts: [{ text }] }, ...(configuration && { configuration }) });
const valueOf = (e) => e.payload?.value ?? e;
const stateOf = (v) => TaskState[v.status.state] ?? v.status.state;
const textOf = (artifact) => artifact.parts.map((p) => p.content?.value ?? "").join("");
const kindOf = (e) => e.payload?.$case ?? Object.keys(e)[0];

async function main() {
  const seen = {};
  const raw = await (await fetch(base + "/.well-known/agent-card.json")).json();
  for (const i of raw.supportedInterfaces) i.url = base;
  const fetchImpl = (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: "Bearer token-of-js" } });
  const factory = BINDING === "JSONRPC" ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
  const client = await new ClientFactory({ transports: [factory] }).createFromAgentCard(AgentCard.fromJSON(raw));
  const refused = async (call) => {
    try { await call(); return "accepted"; } catch (e) { return e.name; }
  };

  const task = valueOf(await client.sendMessage(request("js-1", "hello")));
  seen.message = [stateOf(task), textOf(task.artifacts[0])];
  seen.get = stateOf(await client.getTask({ id: task.id, tenant: "" }));

  const kinds = [];
  for await (const e of client.sendMessageStream(request("js-2", "stream"))) {
    const v = valueOf(e);
    kinds.push(kindOf(e) + " " + (v.artifact ? textOf(v.artifact) : stateOf(v)));
  }
  seen.stream = [kinds[0], kinds.filter((k) => k.startsWith("artifact")).join(), kinds.at(-1)];

  const open = valueOf(await client.sendMessage(request("js-3", "forever", { returnImmediately: true })));
  seen.cancel = [stateOf(open), stateOf(await client.cancelTask({ id: open.id, tenant: "", metadata: undefined }))];

  seen.missing = await refused(() => client.getTask({ id: "no-such-task", tenant: "" }));
  const list = await client.listTasks({ tenant: "", contextId: "ctx-js", pageSize: 2, pageToken: "", status: 0, includeArtifacts: true });
  seen.list = [list.tasks.map(stateOf), list.totalSize, list.nextPageToken !== ""];
  console.log(JSON.stringify(seen));
}

main().catch((e) => { console.error(e); process.exit(1); });
