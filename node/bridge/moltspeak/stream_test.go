package moltspeak

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
)

// partFrom returns a message of its own digest that carries a part of a stream.
func partFrom(peer string, known bool, sources []rate.Source, now time.Time) *request {
	c := &request{m: message.Message{From: message.Agent{Agent: peer}}, answersCall: known, sources: sources, now: now}
	c.address.Link = InboundLink
	rand.Read(c.digest[:])
	return c
}

// streamFrom sends a stream of one chunk, part by part, and returns the code of the last answer.
func (r *rig) streamFrom(peer, kind, data string, label func(piece string, d *message.Draft)) message.Code {
	r.t.Helper()
	var code message.Code
	for piece, p := range steps(kind, data) {
		d := r.draft(peer, message.OpStream, p)
		label(piece, &d)
		m, _ := r.sayBoxed(peer, d)
		code = message.Code(m.P.GetStr("code"))
	}
	return code
}

func steps(kind, data string) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		_ = yield("start", `{"action":"start","stream_id":"s","type":"`+kind+`"}`) &&
			yield("chunk", `{"action":"chunk","stream_id":"s","seq":0,"data":"`+data+`"}`) && yield("end", `{"action":"end","stream_id":"s"}`)
	}
}

func setClass(class message.Class, types ...string) func(*message.Draft) {
	return func(d *message.Draft) {
		if d.Class = class; class == message.PII {
			d.PII = &message.PIIMeta{Types: types, GrantedBy: "user:jane", Purpose: "sync", Proof: "x", Expires: time.Now().Add(time.Hour)}
		}
	}
}

// TestStreamsHaveOneClass: a stream has one class, so a stream that began as personal or confidential cannot end as a
// class that is shown and stored.
func TestStreamsHaveOneClass(t *testing.T) {
	r, n := newTestRig(t, nil)
	if _, status := r.sayBoxed(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)); status >= 300 {
		t.Fatalf("ping: %d", status)
	}
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	const data = "write to jane.doe@example.com"
	for _, c := range []message.Class{message.PII, message.Confidential} {
		for _, odd := range []string{"start", "chunk", "end"} {
			code := r.streamFrom(cat, "text", data, func(piece string, d *message.Draft) {
				if piece == odd {
					setClass(message.Internal)(d)
				} else {
					setClass(c, personal.TypeEmail)(d)
				}
			})
			if code == "" || len(n.got) != 0 {
				t.Errorf("%s with an internal %s: %q, the node got %d", c, odd, code, len(n.got))
			}
		}
	}
	if code := r.streamFrom(cat, "text", data, func(_ string, d *message.Draft) { setClass(message.Confidential)(d) }); code != "" || len(n.got) != 1 || n.got[0].Purge.IsZero() {
		t.Errorf("confidential throughout: %q, the node got %d", code, len(n.got))
	}
	code := r.streamFrom(cat, "text", data, func(piece string, d *message.Draft) {
		if setClass(message.PII, personal.TypePhone)(d); piece == "chunk" {
			setClass(message.PII, personal.TypeEmail)(d)
		}
	})
	if code != "" || len(n.got) != 2 || strings.Contains(string(n.got[1].Payload.JSON()), "jane.doe") {
		t.Errorf("what each piece holds is not masked: %q, %d messages, %s", code, len(n.got), n.got[len(n.got)-1].Payload.JSON())
	}
}

// TestBinaryStreamsAreMasked: personal data in a binary stream is masked like text and needs the same consent.
func TestBinaryStreamsAreMasked(t *testing.T) {
	r, n := newTestRig(t, nil)
	if _, status := r.sayBoxed(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)); status >= 300 {
		t.Fatalf("ping: %d", status)
	}
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	send := func(data string, types ...string) (message.Code, string) {
		before := len(n.got)
		code := r.streamFrom(cat, "binary", base64.StdEncoding.EncodeToString([]byte(data)), func(_ string, d *message.Draft) { setClass(message.PII, types...)(d) })
		if len(n.got) == before {
			return code, ""
		}
		return code, n.got[before].Payload.GetStr("data")
	}
	const hidden = "\x00\xff\x01jane.doe@example.com\x00\xfe"
	if code, got := send(hidden, personal.TypeEmail); code != "" || got != message.Masked {
		t.Errorf("%q, the inbox has %q, want it masked", code, got)
	}
	if code, got := send(hidden, personal.TypePhone); code != message.CodeConsent || got != "" {
		t.Errorf("with a consent for another type: %q, the inbox has %q", code, got)
	}
	if code, got := send("\x00\x01\x02", personal.TypeEmail); code != "" || got != "AAEC" {
		t.Errorf("without personal data: %q, the inbox has %q", code, got)
	}
}
