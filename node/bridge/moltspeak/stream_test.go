package moltspeak

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
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

// TestStreamEndIsRepeated: a stream whose end was refused for the moment stays open, so that the peer can repeat the
// end. Any other refusal drops the stream.
func TestStreamEndIsRepeated(t *testing.T) {
	for refusal, stays := range map[*wire.Error]bool{wire.ErrHoldsFull: true, wire.ErrUnavailable: true, wire.ErrNotAllowed: false} {
		r, n := newTestRig(t, nil)
		r.shake(cat)
		n.take = func(bridge.Inbound) (bridge.Outcome, error) { return bridge.Outcome{}, refusal }
		if code := r.streamFrom(cat, "text", "hello", func(string, *message.Draft) {}); code.IsTemporary() != stays {
			t.Fatalf("%v: %q", refusal, code)
		}
		n.take = nil
		before := len(n.got)
		code := r.code(cat, r.draft(cat, message.OpStream, `{"action":"end","stream_id":"s","total_chunks":1}`))
		if delivered := len(n.got) > before; delivered != stays || (code == "") != stays || len(r.b.streams.open) != 0 || r.b.streams.bytes != 0 {
			t.Errorf("%v: the repeated end: %q, delivered %v, %d bytes stay", refusal, code, delivered, r.b.streams.bytes)
		}
	}
}

// TestStreamEndsAreFew: a stream stays open for only a few attempts at its end, because each attempt reads all its
// data.
func TestStreamEndsAreFew(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.shake(cat)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) { return bridge.Outcome{}, wire.ErrUnavailable }
	r.streamFrom(cat, "text", "hello", func(string, *message.Draft) {})
	for len(n.got) < maxRefusedEnds && r.code(cat, r.draft(cat, message.OpStream, `{"action":"end","stream_id":"s"}`)).IsTemporary() {
	}
	code := r.code(cat, r.draft(cat, message.OpStream, `{"action":"end","stream_id":"s"}`))
	if code != message.CodeInvalidParam || len(n.got) != maxRefusedEnds || r.b.streams.bytes != 0 {
		t.Errorf("after %d refused ends: %q, %d bytes stay", len(n.got), code, r.b.streams.bytes)
	}
}

// fullRecords stores no replay record while full is set.
type fullRecords struct {
	store.Records
	full *bool
}

func (f fullRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if *f.full && changes[0].Record.NS == nsReplays {
		return errors.New("full")
	}
	return f.Records.Apply(ctx, changes, now)
}

// TestPartIsRepeated: a part whose replay record could not be stored can be repeated, and counts once.
func TestPartIsRepeated(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.shake(cat)
	full := false
	r.b.replays.records = fullRecords{r.b.records, &full}
	for piece, p := range steps("text", "hello") {
		raw := r.sign(cat, r.draft(cat, message.OpStream, p))
		if full = piece != "end"; full {
			if m, _ := r.sendRaw(cat, raw); m.P.GetStr("code") != string(message.CodeInternal) {
				t.Errorf("%s without a replay record: %s", piece, m.P.JSON())
			}
			full = false
		}
		for range 2 {
			if m, _ := r.sendRaw(cat, raw); m.Op == message.OpError {
				t.Errorf("%s again: %s", piece, m.P.JSON())
			}
		}
	}
	if len(n.got) != 1 || n.got[0].Payload.GetStr("data") != "hello" {
		t.Errorf("the node got %d messages", len(n.got))
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
