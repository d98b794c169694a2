package link

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// watchedRecords counts the reads, and calls a function once, after a list was read.
type watchedRecords struct {
	store.Records
	gets int
	then func()
}

func (w *watchedRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	w.gets++
	return w.Records.Get(ctx, ns, key, now)
}

func (w *watchedRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	page, err := w.Records.List(ctx, ns, term, after, limit, now)
	if then := w.then; then != nil {
		w.then = nil
		then()
	}
	return page, err
}

// TestCorrelationReadsAreBounded: a chat that names many envelopes costs few reads.
func TestCorrelationReadsAreBounded(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	watched := &watchedRecords{Records: l.l.records.store}
	quiet := &Link{cfg: l.l.cfg, b: l.l.b, records: &records{link: l.l.records.link, store: watched, log: l.l.records.log}}
	var ids []string
	for n := range 1024 {
		ids = append(ids, fmt.Sprint("e", n))
	}
	j := job{e: envelope.Envelope{From: "cat", Correlation: ids}}
	if got := quiet.conversations(t.Context(), &j, "am_cat"); len(got) != 1 || watched.gets > 8 {
		t.Errorf("%d conversations after %d reads, want 1 after at most 8", len(got), watched.gets)
	}
}

// TestClearKeepsDropped: a record that is dropped while the context is cleared does not come back.
func TestClearKeepsDropped(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	watched := &watchedRecords{Records: l.l.records.store}
	r := &records{link: "quiet", store: watched, log: l.l.records.log}
	r.apply(t.Context(), r.rememberInContext("chat", "read", "x", time.Hour), r.rememberInContext("chat", "unread", "x", time.Hour))
	watched.then = func() { r.apply(t.Context(), r.drop("chat", "read")) }
	if err := r.clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := load[string](t.Context(), r, "chat", "read"); ok {
		t.Error("the dropped record is back")
	}
	if _, ok := load[string](t.Context(), r, "chat", "unread"); !ok || r.inContext(t.Context()) != 0 {
		t.Error("the other record is gone, or still counts")
	}
}

// TestOpenedConversationsOfAllAreBounded: participants that choose a new id at each join cannot open more and more
// conversations; the oldest ones make room.
func TestOpenedConversationsOfAllAreBounded(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	for n := range maxOpened + 20 {
		b := Conversation{Conv: wire.ConversationID(fmt.Sprint("conv_", n)), Peer: "am_far", To: fmt.Sprint("guest-", n)}
		if err := l.l.records.open(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	all, err := l.l.conversationsOpened(t.Context())
	if err != nil || len(all) != maxOpened {
		t.Errorf("%d conversations, %v, want %d", len(all), err, maxOpened)
	}
	for _, b := range all {
		if n, _ := strconv.Atoi(strings.TrimPrefix(b.To, "guest-")); n < 20 {
			t.Errorf("the conversation of %s is left", b.To)
		}
	}
}
