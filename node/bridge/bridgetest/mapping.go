package bridgetest

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// roundTrip sends a native message to the foreign side and lets the peer send the same content back. Every field that
// is not declared as a loss must return.
func (s Suite) roundTrip(t *testing.T, kind Kind) {
	f := s.open(t)
	peer := s.Peers[0]
	sent, err := wire.Parse([]byte(kind.Payload))
	if err != nil {
		t.Fatalf("test payload: %v", err)
	}
	if _, err := f.bridge.Deliver(t.Context(), f.newDelivery(peer, kind.Intent, sent)); err != nil {
		t.Fatalf("Deliver: %v", err)
	}
	f.bridge.Inject(t.Context(), peer, f.bridge.Mirror(f.next(peer)))
	got := f.onlyCallAfter(0).in
	if got.Intent != kind.Intent {
		t.Errorf("intent = %s, want %s", got.Intent, kind.Intent)
	}
	received := drop(got.Payload, "metadata.bridge")
	for _, loss := range kind.Losses {
		path := strings.TrimPrefix(loss.Field, "payload.")
		before, had := lookup(sent, path)
		after, has := lookup(received, path)
		if !had || has && sameJSON(before, after) {
			t.Errorf("%s is declared as lost (%s), but it came back, or the payload never had it", loss.Field, loss.Reason)
		}
		sent, received = drop(sent, path), drop(received, path)
	}
	if !sameJSON(sent, received) {
		t.Errorf("payload came back as\n%s\nwant, except for the losses,\n%s", received.JSON(), sent.JSON())
	}
}

// newDelivery returns a delivery as the node's outbox would make it.
func (f *fixture) newDelivery(peer string, intent wire.Intent, payload wire.Value) bridge.Delivery {
	f.t.Helper()
	address := f.Address(peer)
	m, err := wire.ParseDraft(wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: "am_bridgetest", To: address.Pseudonym(),
		Time: time.Now(), Intent: intent, Payload: payload,
	}.Tree())
	if err != nil {
		f.t.Fatalf("test message: %v", err)
	}
	return bridge.Delivery{
		ID: string(m.ID), To: m.To, Address: address.String(), Message: m, Raw: m.Tree.JSON(), Attempt: 1,
	}
}

// next returns the next message that the foreign peer gets.
func (f *fixture) next(peer string) []byte {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	raw, err := f.bridge.Next(ctx, peer)
	if err != nil {
		f.t.Fatalf("the foreign peer got nothing: %v", err)
	}
	return raw
}

// hostile checks that the bridge survives any input, and that the node accepts none of the messages in Hostile.
func (s Suite) hostile(t *testing.T) {
	f := s.open(t)
	peer := s.Peers[0]
	for _, raw := range parserBreakers() {
		f.bridge.Inject(t.Context(), peer, raw) // the recorder checks what the bridge hands in
	}
	for _, raw := range s.Hostile {
		before := f.callCount()
		f.bridge.Inject(t.Context(), peer, raw)
		for _, c := range f.callsAfter(before) {
			if c.err == nil {
				t.Errorf("the node accepted %.200q", raw)
			}
		}
	}
	if c := f.inject(peer, 1); c.err != nil {
		t.Errorf("a good message after all that: %v", c.err)
	}
}

// parserBreakers returns input on which parsers are known to fail.
func parserBreakers() [][]byte {
	deep := bytes.Repeat([]byte("["), 100_000)
	return [][]byte{
		nil, {0}, []byte("\xff\xfe\xfd"), []byte("\xef\xbb\xbf{}"), []byte("null"), []byte("{}"), []byte("[]"), []byte(`""`),
		[]byte("{"), []byte(`{"a":1,"a":2}`), []byte(`{"__proto__":{}}`), []byte(`{"id":1e400}`), []byte(`"\ud800"`),
		deep, bytes.Repeat([]byte(`{"a":`), 50_000), bytes.Repeat([]byte("a"), 10<<20), []byte("\x1b]0;owned\x07\u202e"),
		[]byte("a: &a [*a]\n"), []byte("---\n- !!python/object:os.system rm\n"), []byte("\r\n\r\n"),
	}
}

// reconnect breaks and restores the link. A delivery must fail while the link is down, and work afterwards.
func (s Suite) reconnect(t *testing.T) {
	f := s.open(t)
	peer, kind := s.Peers[0], s.Kinds[0]
	payload, err := wire.Parse([]byte(kind.Payload))
	if err != nil {
		t.Fatalf("test payload: %v", err)
	}
	if c := f.inject(peer, 1); c.err != nil {
		t.Fatalf("message before the break: %v", c.err)
	}
	f.bridge.Disconnect()
	d := f.newDelivery(peer, kind.Intent, payload)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := f.bridge.Deliver(ctx, d); err == nil {
		t.Error("a delivery over a broken link succeeded")
	}
	f.bridge.Reconnect()
	if c := f.inject(peer, 1); c.err != nil || !c.out.Duplicate {
		t.Errorf("message that was sent before: duplicate %v, %v, want a duplicate", c.out.Duplicate, c.err)
	}
	if c := f.inject(peer, 2); c.err != nil || c.out.Duplicate {
		t.Errorf("new message: duplicate %v, %v, want it accepted", c.out.Duplicate, c.err)
	}
	d.Attempt = 2
	if _, err := f.bridge.Deliver(t.Context(), d); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
}

// lookup returns the value at a dotted path of members.
func lookup(v wire.Value, path string) (wire.Value, bool) {
	ok := true
	for key := range strings.SplitSeq(path, ".") {
		if v, ok = v.Get(key); !ok {
			return wire.Value{}, false
		}
	}
	return v, true
}

// drop returns v without the value at a dotted path of members, and without the objects that become empty by that.
func drop(v wire.Value, path string) wire.Value {
	key, rest, more := strings.Cut(path, ".")
	if !more {
		return v.Without(key)
	}
	inner, ok := v.Get(key)
	if !ok || inner.Kind() != wire.Object {
		return v
	}
	if inner = drop(inner, rest); inner.Len() == 0 {
		return v.Without(key)
	}
	return v.With(key, inner)
}

// sameJSON reports whether two values are equal, whatever the order of their members.
func sameJSON(a, b wire.Value) bool {
	if a.Kind() != b.Kind() || a.Len() != b.Len() {
		return false
	}
	switch a.Kind() {
	case wire.Object:
		for _, m := range a.Members() {
			other, ok := b.Get(m.Key)
			if !ok || !sameJSON(m.Value, other) {
				return false
			}
		}
		return true
	case wire.Array:
		for i := range a.Len() {
			if !sameJSON(a.At(i), b.At(i)) {
				return false
			}
		}
		return true
	}
	return bytes.Equal(a.JSON(), b.JSON())
}
