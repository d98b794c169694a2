// Plays a client of A2A 0.3 with @a2a-js/sdk 0.3.14 against an agent behind the relay at URL and prints what it saw, as
// JSON. A2A_JS_03 is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const load = createRequire(process.env.A2A_JS_03 + "/package.json");
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = load("@a2a-js/sdk/client");
const { URL: base, BINDING } = process.env;

const request = (messageId, text, configuration = { blocking: true }) =>
  ({ message: { kind: "message", messageId, contextId: "ctx-js", role: "user", parts: [{ kind: "text", text }] }, configuration });
const textOf = (artifact) => artifact.parts.map((p) => p.text ?? "").join("");

async function main() {
  const seen = {};
  const card = await (await fetch(base + "/.well-known/agent.json")).json();
  seen.card = [card.protocolVersion, card.preferredTransport, card.additionalInterfaces.length];
  card.url = base;
  for (const i of card.additionalInterfaces) i.url = base;
  card.preferredTransport = BINDING;
  const fetchImpl = (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: "Bearer token-of-js" } });
  const factory = BINDING === "JSONRPC" ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
  const client = await new ClientFactory({ transports: [factory] }).createFromAgentCard(card);
  const refused = async (call) => {
    try { await call(); return "accepted"; } catch (e) { return e.constructor.name.replace("JSONRPC", ""); }
  };

  const task = await client.sendMessage(request("js-1", "hello"));
  seen.message = [task.kind, task.status.state, textOf(task.artifacts[0])];
  seen.get = (await client.getTask({ id: task.id })).status.state;

  const kinds = [];
  for await (const e of client.sendMessageStream(request("js-2", "stream"))) {
    kinds.push(e.kind + " " + (e.artifact ? textOf(e.artifact) : e.status.state) + (e.final ? " final" : ""));
  }
  seen.stream = [kinds[0], kinds.filter((k) => k.startsWith("artifact")).join(), kinds.at(-1)];

  const open = await client.sendMessage(request("js-3", "forever", { blocking: false }));
  seen.cancel = [open.status.state, (await client.cancelTask({ id: open.id })).status.state];

  seen.missing = await refused(() => client.getTask({ id: "no-such-task" }));
  card.capabilities.pushNotifications = true; // otherwise the client itself refuses the call
  seen.push = await refused(() => client.setTaskPushNotificationConfig({ taskId: task.id, pushNotificationConfig: { id: "c1", url: "https://x.example/" } }));
  console.log(JSON.stringify(seen));
}

main().catch((e) => { console.error(e); process.exit(1); });
