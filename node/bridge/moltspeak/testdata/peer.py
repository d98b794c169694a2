"""A MoltSpeak agent in Python, as the public SDK speaks: json.dumps, PyNaCl, the fields it knows and no others.

peer.py URL NAME  talks to the agent NAME (agent@org) at URL, then serves one message and answers it. Each step that
worked is a line on standard output; the port that it serves at is the line "port N".
"""
import base64
import hashlib
import http.server
import json
import sys
import time
import urllib.request
import uuid

import nacl.public
import nacl.signing

FIELDS = ["v", "id", "ts", "op", "from", "to", "p", "cls", "sig", "re", "exp", "cap", "pii_meta", "ext"]
OPS = ["hello", "verify", "query", "respond", "task", "stream", "tool", "consent", "error"]  # the SDK raises on any other
sign_key = nacl.signing.SigningKey(hashlib.sha256(b"test py@sdk").digest())
box_key = nacl.public.PrivateKey(hashlib.sha256(b"test py@sdk").digest())
server = {}  # what the other side says of itself


def b64(data):
    return base64.b64encode(bytes(data)).decode()


def canonical(message):
    return json.dumps({k: v for k, v in message.items() if k != "sig"}, sort_keys=True, separators=(",", ":")).encode()


def rebuilt(data):
    """The message as the SDK has it after reading: unknown and empty members are gone."""
    message = {k: data[k] for k in FIELDS if data.get(k)}
    message["p"] = data["p"]
    for side in ("from", "to"):
        message[side] = {k: data[side][k] for k in ("agent", "org", "key", "enc_key") if data[side].get(k)}
    return message


def check(data):
    assert data["op"] in OPS, "the SDK cannot read op " + data["op"]
    message = rebuilt(data)
    key = nacl.signing.VerifyKey(base64.b64decode(message["from"].get("key", server.get("key")).removeprefix("ed25519:")))
    sig = base64.b64decode(message["sig"].removeprefix("ed25519:"), validate=True)
    assert len(sig) == 64
    key.verify(canonical(message), sig)
    return message


def make(op, payload, to, **more):
    agent, org = to.split("@")
    message = {
        "v": "0.1", "id": str(uuid.uuid4()), "ts": int(time.time() * 1000), "op": op,
        "from": {"agent": "py", "org": "sdk", "key": "ed25519:" + b64(sign_key.verify_key), "enc_key": "x25519:" + b64(box_key.public_key)},
        "to": {"agent": agent, "org": org}, "p": payload, "cls": "int", **more,
    }
    message["sig"] = "ed25519:" + b64(sign_key.sign(canonical(message)).signature)
    return message


def boxed(message):
    other = nacl.public.PublicKey(base64.b64decode(server["enc_key"].removeprefix("x25519:")))
    sealed = nacl.public.Box(box_key, other).encrypt(json.dumps(message).encode())
    return {
        "moltspeak": "0.1",
        "envelope": {"encrypted": True, "algorithm": "x25519-xsalsa20-poly1305", "sender_public": "x25519:" + b64(box_key.public_key), "nonce": "base64:" + b64(sealed.nonce)},
        "ciphertext": "base64:" + b64(sealed.ciphertext),
    }


def opened(document):
    if "moltspeak" not in document:
        return document
    envelope = document["envelope"]
    if not envelope["encrypted"]:
        return document["message"]
    other = nacl.public.PublicKey(base64.b64decode(envelope["sender_public"].removeprefix("x25519:")))
    nonce = base64.b64decode(envelope["nonce"].removeprefix("base64:"))
    return json.loads(nacl.public.Box(box_key, other).decrypt(base64.b64decode(document["ciphertext"].removeprefix("base64:")), nonce))


def post(url, document):
    request = urllib.request.Request(url + "/moltspeak/v0.1/message", json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def talk(url, to):
    hello = make("hello", {"protocol_versions": ["0.1"], "capabilities": ["query"], "supported_cls": ["public", "internal", "pii"]}, to)
    data = post(url, hello)
    server.update(data["from"])
    ack = check(data)
    assert ack["op"] == "respond" and ack["re"] == hello["id"], ack
    print("hello")
    proof = {"status": "success", "data": {"challenge": ack["p"]["data"]["challenge"]}}
    made = check(post(url, make("respond", proof, to, re=ack["id"])))
    assert made["op"] == "respond" and made["p"]["data"]["session_id"], made
    print("session")
    consent = {"action": "request", "data_types": ["email"], "purpose": "calendar", "duration": "session"}
    asked = check(post(url, make("consent", consent, to)))
    assert asked["op"] == "respond" and asked["p"]["status"] == "partial", asked
    print("consent")
    params = {"text": "gr\u00fc\u00dfe \u4e16\u754c \U0001f600 \x7f \u2028 </>&", "n": [0.1, 1.0, 1e-07, 1.5e-300, -0.0, 2**53 - 1], "none": None, "b": True}
    document = post(url, boxed(make("query", {"domain": "weather", "intent": "forecast", "params": params}, to)))
    assert document["envelope"]["encrypted"]
    answer = check(opened(document))
    assert answer["op"] == "respond" and answer["p"] == {"status": "success", "data": "12.5 \u00b0C, \x7f"}, answer
    print("query")
    data, pieces = bytes(range(256)) * 300, []
    post(url, make("stream", {"action": "start", "stream_id": "s1", "type": "binary"}, to))
    for seq in range(0, len(data), 30000):
        pieces.append(data[seq:seq + 30000])
        post(url, make("stream", {"action": "chunk", "stream_id": "s1", "seq": len(pieces), "data": b64(pieces[-1])}, to))
    end = {"action": "end", "stream_id": "s1", "total_chunks": len(pieces), "checksum": "sha256:" + hashlib.sha256(data).hexdigest()}
    assert check(post(url, make("stream", end, to)))["op"] == "respond"
    print("stream")


class Endpoint(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = check(opened(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        print("got", message["op"], json.dumps(message["p"], sort_keys=True), flush=True)
        answer = make("respond", {"status": "success", "data": {"high_c": 12.5}}, message["from"]["agent"] + "@" + message["from"]["org"], re=message["id"])
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


talk(sys.argv[1], sys.argv[2])
with http.server.HTTPServer(("127.0.0.1", 0), Endpoint) as endpoint:
    print("port", endpoint.server_port, flush=True)
    endpoint.timeout = 60
    endpoint.handle_request()
