// Plays a client of A2A 0.3 with @a2a-js/sdk 0.3.14 against the agent at URL and prints what it saw, as JSON.
// A2A_JS_03 is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const http = require("node:http");
const load = createRequire(process.env.A2A_JS_03 + "/package.json");
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = load("@a2a-js/sdk/client");
const { URL: base, TOKEN, BINDING } = process.env;

const request = (messageId, text, more, configuration = { blocking: true }) =>
  ({ message: { kind: "message", messageId, contextId: "ctx-js", role: "user", parts: [{ kind: "text", text }], ...more }, configuration });
const textOf = (artifact) => artifact.parts.map((p) => p.text ?? "").join("");

async function main() {
  const seen = {};
  const card = await (await fetch(base + "/.well-known/agent.json")).json();
  seen.card = [card.protocolVersion, card.preferredTransport, card.additionalInterfaces.length, card.securitySchemes.bearer.type];
  const at = (url) => url.replace(new URL(url).origin, base); // the test records at base
  card.url = at(card.url);
  for (const i of card.additionalInterfaces) i.url = at(i.url);
  card.preferredTransport = BINDING;
  const fetchImpl = (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: "Bearer " + TOKEN } });
  const factory = BINDING === "JSONRPC" ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
  const client = await new ClientFactory({ transports: [factory] }).createFromAgentCard(card);

  const task = await client.sendMessage(request("js-1", "hello"));
  seen.message = [task.kind, task.status.state, textOf(task.artifacts[0])];
  const again = await client.getTask({ id: task.id, historyLength: 1 });
  seen.get = [again.status.state, again.history.length, again.history[0].role];

  const asked = await client.sendMessage(request("js-5", "buy"));
  const answered = await client.sendMessage(request("js-6", "red", { taskId: asked.id }));
  seen.question = [asked.status.state, asked.status.message.parts[0].text, answered.id === asked.id, answered.status.state];

  seen.stream = [];
  for await (const e of client.sendMessageStream(request("js-2", "slow"))) {
    seen.stream.push(e.kind + " " + (e.artifact ? textOf(e.artifact) : e.status.state) + (e.final ? " final" : ""));
  }

  const open = await client.sendMessage(request("js-3", "later", {}, { blocking: false }));
  seen.cancel = [open.status.state, (await client.cancelTask({ id: open.id })).status.state];

  const pushed = [];
  const hook = http.createServer((req, res) => {
    let body = "";
    req.on("data", (d) => (body += d));
    req.on("end", () => { pushed.push([req.headers["x-a2a-notification-token"], JSON.parse(body)]); res.end(); });
  });
  await new Promise((r) => hook.listen(0, "127.0.0.1", r));
  const url = "http://127.0.0.1:" + hook.address().port + "/hook";
  const followed = await client.sendMessage(request("js-4", "slow", {}, { blocking: false }));
  const made = await client.setTaskPushNotificationConfig({ taskId: followed.id, pushNotificationConfig: { id: "c1", url, token: "tok" } });
  const got = await client.getTaskPushNotificationConfig({ id: followed.id, pushNotificationConfigId: "c1" });
  const listed = await client.listTaskPushNotificationConfig({ id: followed.id });
  seen.push = [made.pushNotificationConfig.id, got.pushNotificationConfig.url === url, listed.length];
  for await (const e of client.resubscribeTask({ id: followed.id })) seen.subscribed = e.kind;
  for (let i = 0; i < 200 && pushed.length === 0; i++) await new Promise((r) => setTimeout(r, 25));
  seen.pushed = [pushed[0]?.[0], pushed[0]?.[1]?.kind, pushed[0]?.[1]?.status?.state];
  await client.deleteTaskPushNotificationConfig({ id: followed.id, pushNotificationConfigId: "c1" });
  hook.close();
  try {
    await client.getTask({ id: "no-such-task" });
  } catch (e) {
    seen.missing = e.constructor.name.replace("JSONRPC", "");
  }
  console.log(JSON.stringify(seen));
}

main().catch((e) => { console.error(e); process.exit(1); });
