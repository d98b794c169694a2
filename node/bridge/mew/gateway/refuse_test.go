package gateway

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestErrors checks the errors of the gateway, word for word, on both transports. Alice has an open stream, stream-1.
func TestErrors(t *testing.T) {
	const held = `[{"kind":"chat"},{"kind":"chat/*"},{"kind":"mcp/proposal"},{"kind":"mcp/withdraw"},{"kind":"reasoning/*"},{"kind":"stream/*"},{"kind":"participant/*"}]`
	const (
		system  = "system:gateway"
		streams = "gateway"
	)
	for _, tt := range []struct {
		name, from, send string
		payload          string // of system/error
		status           int
		body             string // of HTTP; empty: the payload; "whole": the envelope
	}{
		{"no capability", system, `{"id":"e1","kind":"mcp/request","payload":{"method":"x"}}`,
			`{"error":"capability_violation","attempted_kind":"mcp/request","your_capabilities":` + held + `}`,
			403, `{"error":"capability_violation","message":"Participant bob lacks capability for mcp/request"}`},
		{"system kind", system, `{"id":"e2","kind":"system/register","payload":{}}`,
			`{"error":"invalid_request","message":"system/register is reserved for the gateway. Participants cannot send it"}`, 400, ""},
		{"gateway's kind", system, `{"id":"e3","kind":"stream/open","payload":{}}`,
			`{"error":"invalid_request","message":"stream/open is reserved for the gateway. Participants cannot send it"}`, 400, ""},
		{"forged from", system, `{"id":"e4","from":"alice","kind":"chat","payload":{}}`,
			`{"error":"identity_mismatch","message":"from must be bob"}`, 403, ""},
		{"not JSON", system, `{"id":`, `{"error":"the message is not valid JSON: unexpected end at byte 6","code":"PROCESSING_ERROR"}`, 400, ""},
		{"duplicate key", system, `{"id":"a","id":"b"}`, `{"error":"the message is not valid JSON: duplicate key at byte 10","code":"PROCESSING_ERROR"}`, 400, ""},
		{"null", system, `null`, `{"error":"a message must be a JSON object","code":"VALIDATION_ERROR"}`, 400, ""},
		{"array", system, `[{}]`, `{"error":"a message must be a JSON object","code":"VALIDATION_ERROR"}`, 400, ""},
		{"version", system, `{"id":"e5","protocol":"mew/v0.3","kind":"chat"}`, `{"error":"Invalid protocol version: mew/v0.3","code":"VALIDATION_ERROR"}`, 400, ""},
		{"no kind", system, `{"id":"e6","payload":{}}`, `{"error":"kind must be a string of 1 to 128 bytes","code":"VALIDATION_ERROR"}`, 400, ""},
		{"payload", system, `{"id":"e7","kind":"chat","payload":[]}`, `{"error":"payload must be an object","code":"VALIDATION_ERROR"}`, 400, ""},
		{"to", system, `{"id":"e8","kind":"chat","to":[1]}`, `{"error":"to must be an array of participant ids","code":"VALIDATION_ERROR"}`, 400, ""},
		{"id", system, `{"id":7,"kind":"chat"}`, `{"error":"id must be a string of 1 to 256 bytes","code":"VALIDATION_ERROR"}`, 400, ""},
		{"acknowledge nothing", system, `{"id":"e9","kind":"chat/acknowledge","payload":{}}`, `{"error":"chat/acknowledge needs a correlation_id","code":"VALIDATION_ERROR"}`, 400, ""},
		{"thought without context", system, `{"id":"e9","kind":"reasoning/thought","payload":{}}`, `{"error":"reasoning/thought needs the id of its reasoning/start as context","code":"VALIDATION_ERROR"}`, 400, ""},
		{"no proposer", system, `{"id":"e10","kind":"mcp/withdraw","correlation_id":["p-alice"]}`, `{"error":"not_proposer"}`, 403, ""},
		{"target", system, `{"id":"e11","kind":"stream/request","payload":{"direction":"upload","target":["nobody"]}}`,
			`{"error":"target_not_found","targets":["nobody"],"message":"A target of the stream is not in the space"}`, 400, "whole"},
		{"stream", streams, `{"id":"e12","kind":"stream/close","payload":{"stream_id":"stream-9"}}`,
			`{"error":"stream_not_found","message":"There is no such stream"}`, 404, "whole"},
		{"stream of another", streams, `{"id":"e13","kind":"stream/close","payload":{"stream_id":"stream-1"}}`,
			`{"error":"unauthorized","message":"Only the owner, a writer or a target may close a stream"}`, 403, "whole"},
		{"writers of another", streams, `{"id":"e14","kind":"stream/grant-write","payload":{"stream_id":"stream-1","participant_id":"bob"}}`,
			`{"error":"unauthorized","message":"Only the owner of the stream may do this"}`, 403, "whole"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, newLabConfig(t))
			alice, bob := r.Join("alice-token"), r.Join("bob-token")
			alice.Send(`{"kind":"stream/request","payload":{"direction":"upload"}}`, `{"id":"p-alice","kind":"mcp/proposal","payload":{"method":"x"}}`)
			alice.Fence()
			bob.Until("mcp/proposal")
			bob.Send(tt.send)
			e := bob.Until("system/error")
			checkError(t, e, tt.from, tt.payload, tt.send)
			status, body := r.Post("bob", "bob-token", tt.send)
			if status != tt.status {
				t.Errorf("HTTP status %d, want %d: %s", status, tt.status, body)
			}
			switch tt.body {
			case "whole":
				checkError(t, mewtest.Parse(t, body), tt.from, tt.payload, tt.send)
			case "":
				if body != tt.payload {
					t.Errorf("HTTP body %s, want %s", body, tt.payload)
				}
			default:
				if body != tt.body {
					t.Errorf("HTTP body %s, want %s", body, tt.body)
				}
			}
			bob.Until("system/error") // a refusal by HTTP reaches the connection too (MEW-H2)
			for _, s := range alice.Fence() {
				if strings.Contains(s, "system/error") || strings.Contains(s, `"from":"bob","kind"`) {
					t.Errorf("alice saw %s", s)
				}
			}
		})
	}
}

// checkError checks that e is a complete system/error (MEW-1, MEW-9).
func checkError(t *testing.T, e interface {
	GetStr(string) string
	JSON() []byte
}, from, payload, trigger string) {
	t.Helper()
	v := mewtest.Parse(t, string(e.JSON()))
	for _, key := range []string{"protocol", "id", "ts", "from", "to", "kind", "payload"} {
		if _, ok := v.Get(key); !ok {
			t.Errorf("the error has no %s: %s", key, v.JSON())
		}
	}
	if v.GetStr("from") != from || v.GetStr("kind") != "system/error" || string(mewtest.Payload(v).JSON()) != payload {
		t.Errorf("got %s, want from %s with %s", v.JSON(), from, payload)
	}
	if before, _, ok := strings.Cut(strings.TrimPrefix(trigger, `{"id":"e`), `"`); ok && strings.HasPrefix(trigger, `{"id":"e`) {
		if c, _ := v.Get("correlation_id"); string(c.JSON()) != `["e`+before+`"]` {
			t.Errorf("correlation_id %s does not name the trigger", c.JSON())
		}
	}
}

// TestRateOfRefused: refused envelopes count toward rate_per_minute too, whatever they are refused for.
func TestRateOfRefused(t *testing.T) {
	for name, bad := range map[string]string{
		"not JSON": `{"id":`, "shape": `{"kind":"chat","payload":[]}`, "forged from": `{"from":"bob","kind":"chat"}`, "reserved": `{"kind":"system/error"}`,
	} {
		cfg := newLabConfig(t)
		cfg.RatePerMinute = 5
		s := newQuietSpace(t, cfg)
		for range cfg.RatePerMinute {
			if got := say(s, "alice", bad); got == "" || got == "rate_limited" {
				t.Errorf("%s: %q", name, got)
			}
		}
		for _, next := range []string{bad, `{"kind":"chat"}`} {
			if got := say(s, "alice", next); got != "rate_limited" {
				t.Errorf("%s: after %d refusals %s got %q", name, cfg.RatePerMinute, next, got)
			}
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	r := start(t, newLabConfig(t))
	chat := `{"kind":"chat","payload":{"text":"hi"}}`
	for _, tt := range []struct {
		name, method, path, token, body string
		status                          int
		want                            string
	}{
		{"no bearer", "POST", "/participants/bob/messages", "", chat, 401, `{"error":"Missing or invalid authorization header"}`},
		{"unknown token", "POST", "/participants/bob/messages", "nobody", chat, 403, `{"error":"Invalid token for participant"}`},
		{"token of another", "POST", "/participants/alice/messages", "bob-token", chat, 403, `{"error":"Invalid token for participant"}`},
		{"unknown participant", "POST", "/participants/nobody/messages", "bob-token", chat, 403, `{"error":"Invalid token for participant"}`},
		{"another space", "POST", "/participants/bob/messages?space=other", "bob-token", chat, 403, `{"error":"Invalid token for participant"}`},
		{"too large", "POST", "/participants/bob/messages", "bob-token", strings.Repeat(" ", envelope.MaxEnvelope+1), 413, `{"error":"the message is too large","code":"PROCESSING_ERROR"}`},
		{"no body", "POST", "/participants/bob/messages", "bob-token", "", 400, `{"error":"the message is not valid JSON: unexpected end at byte 0","code":"PROCESSING_ERROR"}`},
		{"list without bearer", "GET", "/participants", "", "", 401, `{"error":"Missing or invalid authorization header"}`},
		{"bad since", "GET", "/participants/bob/messages?since=yesterday", "bob-token", "", 400, `{"error":"since must be an RFC 3339 time, limit and wait whole numbers"}`},
		{"another method", "DELETE", "/participants/bob/messages", "bob-token", "", 405, `{"error":"Method not allowed"}`},
		{"another path", "GET", "/participants/a%2Fb/messages", "bob-token", "", 404, `{"error":"Not found"}`},
		{"no upgrade", "GET", "/ws", "", "", 426, `{"error":"this path accepts only WebSocket connections"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, body := r.Call(tt.method, tt.path, tt.token, tt.body); status != tt.status || body != tt.want {
				t.Errorf("%d %s, want %d %s", status, body, tt.status, tt.want)
			}
		})
	}
	if status, body := r.Post("bob", "bob-token", chat); status != 200 || !strings.Contains(body, `"status":"accepted"`) {
		t.Errorf("%d %s", status, body)
	}
}
