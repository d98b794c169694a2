// Plays a client of A2A with @a2a-js/sdk against the agent at URL and prints what it saw, as JSON.
// A2A_JS is a folder with node_modules; BINDING is JSONRPC or HTTP+JSON.
const { createRequire } = require("node:module");
const http = require("node:http");
const load = createRequire(process.env.A2A_JS + "/package.json");
const { AgentCard, SendMessageRequest, TaskState, verifyAgentCardSignature } = load("@a2a-js/sdk");
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = load("@a2a-js/sdk/client");
const { URL: base, TOKEN, BINDING } = process.env;

const request = (messageId, text, configuration) =>
  SendMessageRequest.fromJSON({
    message: { messageId, contextId: "ctx-js", role: "ROLE_USER", parts: [{ text }] },
    ...(configuration && { configuration }),
  });
const stateOf = (task) => TaskState[task.status.state] ?? task.status.state;
const textOf = (artifact) => artifact.parts.map((p) => p.content?.value ?? "").join("");
const kindOf = (e) => e.payload?.$case ?? Object.keys(e)[0];
const valueOf = (e) => e.payload?.value ?? e;

async function main() {
  const seen = {};
  const raw = await (await fetch(base + "/.well-known/agent-card.json")).json();
  const keys = await (await fetch(base + "/.well-known/jwks.json")).json();
  const verify = verifyAgentCardSignature(async (kid) => keys.keys.find((k) => k.kid === kid));
  await verify(raw);
  seen.signature = "verified";
  for (const i of raw.supportedInterfaces) i.url = i.url.replace(new URL(i.url).origin, base); // the test records at base

  const fetchImpl = (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: "Bearer " + TOKEN } });
  const factory = BINDING === "JSONRPC" ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
  const client = await new ClientFactory({ transports: [factory] }).createFromAgentCard(AgentCard.fromJSON(raw));

  const sent = await client.sendMessage(request("js-1", "hello"));
  const task = sent.payload?.value ?? sent;
  seen.message = [stateOf(task), textOf(task.artifacts[0])];

  const again = await client.getTask({ id: task.id, historyLength: 1, tenant: "" });
  seen.get = [stateOf(again), again.history.length];

  seen.stream = [];
  for await (const e of client.sendMessageStream(request("js-2", "slow"))) {
    const v = valueOf(e);
    seen.stream.push(kindOf(e) + " " + (v.artifact ? textOf(v.artifact) : stateOf(v)));
  }

  const waiting = await client.sendMessage(request("js-3", "later", { returnImmediately: true }));
  const open = waiting.payload?.value ?? waiting;
  const canceled = await client.cancelTask({ id: open.id, tenant: "", metadata: undefined });
  seen.cancel = [stateOf(open), stateOf(canceled)];

  const pushed = [];
  const hook = http.createServer((req, res) => {
    let body = "";
    req.on("data", (d) => (body += d));
    req.on("end", () => { pushed.push([req.headers["x-a2a-notification-token"], JSON.parse(body)]); res.end(); });
  });
  await new Promise((r) => hook.listen(0, "127.0.0.1", r));
  const url = "http://127.0.0.1:" + hook.address().port + "/hook";
  const third = await client.sendMessage(request("js-4", "slow", { returnImmediately: true }));
  const followed = third.payload?.value ?? third;
  const config = { taskId: followed.id, id: "c1", url, token: "tok", tenant: "", authentication: undefined };
  const made = await client.createTaskPushNotificationConfig(config);
  const got = await client.getTaskPushNotificationConfig({ taskId: followed.id, id: "c1", tenant: "" });
  const listed = await client.listTaskPushNotificationConfig({ taskId: followed.id, tenant: "", pageSize: 0, pageToken: "" });
  seen.push = [made.id, got.url === url, listed.configs.length];
  for await (const e of client.resubscribeTask({ id: followed.id, tenant: "" })) seen.subscribed = kindOf(e);
  for (let i = 0; i < 200 && pushed.length === 0; i++) await new Promise((r) => setTimeout(r, 25));
  seen.pushed = [pushed[0]?.[0], pushed[0]?.[1]?.task?.status?.state];
  await client.deleteTaskPushNotificationConfig({ taskId: followed.id, id: "c1", tenant: "" });
  hook.close();

  const list = await client.listTasks({ tenant: "", contextId: "ctx-js", pageSize: 2, pageToken: "", status: 0, includeArtifacts: true });
  seen.list = [list.tasks.length, list.totalSize, list.nextPageToken !== ""];
  try {
    await client.getTask({ id: "no-such-task", tenant: "" });
  } catch (e) {
    seen.missing = e.name + (e.code ? " " + e.code : "");
  }
  const more = await client.getAgentCard();
  seen.extended = more.skills.length > raw.skills.length;
  console.log(JSON.stringify(seen));
}

main().catch((e) => { console.error(e); process.exit(1); });
