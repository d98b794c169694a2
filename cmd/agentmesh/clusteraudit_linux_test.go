//go:build slow || clockstep

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/wire"
)

// audit checks that everything acknowledged is stored exactly once, and logs the figures. Call it after run.
func (l *clusterLoad) audit() {
	t, begun := l.t, time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	l.awaitNumbered(ctx)
	l.c.awaitServing(ctx)
	var lost atomic.Int64
	lose := func(format string, args ...any) {
		if n := lost.Add(1); n <= 20 {
			t.Errorf(format, args...)
		}
	}
	inParallel(l.cards, func(id wire.AgentID) {
		if _, err := l.directory().Card(ctx, id); err != nil {
			lose("an acknowledged registration is lost: %v", err)
		}
	})
	inParallel(l.messages, func(e roundTrip) {
		status, answer := l.post(ctx, "again", l.c.front.URL+"/agentmesh", e.sent)
		// If a held message was approved meanwhile, the repetition gets the final reply (AM-22).
		if status != e.status && e.status != http.StatusAccepted || e.status == http.StatusOK && !bytes.Equal(answer, e.answer) {
			lose("a message was answered %d %s, and now %d %s", e.status, e.answer, status, answer)
		}
	})
	inParallel(slices.Collect(maps.Keys(l.approvals)), func(id string) {
		_, o := l.c.nextOwner()
		raw, err := o.Call(ctx, "GET", "approvals/"+url.PathEscape(id), nil, nil)
		if err == nil {
			var ask acl.Ask
			if ask, err = daemon.Decode[acl.Ask](raw); err == nil && ask.State != acl.AskApproved {
				err = fmt.Errorf("it is %s", ask.State)
			}
		}
		if err != nil {
			lose("an acknowledged approval is lost: %v", err)
		}
	})
	doubled := l.auditInbox(ctx, lose)
	inParallel(l.mailboxes, func(b *loadMailbox) {
		doubled.Add(int64(l.auditMailbox(ctx, b, lose)))
	})
	disordered := 0
	for conv, n := range l.numbered {
		ids := map[string]bool{}
		for i, entry := range l.arrived[conv] {
			number, id, _ := strings.Cut(entry, " ")
			if number != strconv.Itoa(i) {
				disordered++
				t.Errorf("in %s, message %s came at place %d", conv, number, i)
			}
			ids[id] = true
		}
		if got := len(l.arrived[conv]); got < n || got > n+1 { // one more if the last call had no answer
			lose("%d numbered messages of %s arrived, and %d were acknowledged", got, conv, n)
		}
		doubled.Add(int64(len(l.arrived[conv]) - len(ids)))
	}
	for to, ids := range l.lateReplies {
		if len(ids) > 1 {
			doubled.Add(1)
			t.Errorf("%s was answered by %v", to, ids)
		}
	}
	t.Logf("%d acknowledged (%v); %d lost, %d doubled, %d numbered messages out of order; %d numbered messages were sent again with the same id; refusals: %v; the audit took %v",
		l.acknowledged(), l.total, lost.Load(), doubled.Load(), disordered, l.repeated, l.refusals, time.Since(begun).Round(time.Second))
	if doubled.Load() != 0 || lost.Load() != 0 {
		t.Errorf("%d writes were lost and %d were doubled", lost.Load(), doubled.Load())
	}
	for what := range l.refusals {
		if !strings.HasSuffix(what, " 503") && !strings.HasPrefix(what, ackCard) {
			t.Errorf("calls were answered with %s", what)
		}
	}
}

// awaitNumbered waits until every acknowledged numbered message has arrived and every approved message was answered.
func (l *clusterLoad) awaitNumbered(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute) // a delivery that failed in an outage waits for minutes
	defer cancel()
	err := poll(ctx, "numbered messages are on the way", func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for conv, n := range l.numbered {
			if len(l.arrived[conv]) < n {
				return false, nil
			}
		}
		return len(l.lateReplies) >= len(l.approvals), nil
	})
	if err != nil {
		l.t.Error(err)
	}
}

// auditInbox checks that every acknowledged message is in the inbox, and counts messages that are there twice.
func (l *clusterLoad) auditInbox(ctx context.Context, lose func(string, ...any)) *atomic.Int64 {
	seen, err := countInbox(ctx, func() *daemon.Client { _, o := l.c.nextOwner(); return o })
	if err != nil {
		l.t.Fatal(err)
	}
	var doubled atomic.Int64
	for _, e := range l.messages {
		v, err := wire.ParseObject(e.sent)
		if err != nil {
			l.t.Fatal(err)
		}
		switch n := seen[wire.MessageID(v.GetStr("message_id"))]; {
		case n == 0:
			lose("an acknowledged message is not in the inbox")
		case n > 1:
			doubled.Add(1)
		}
	}
	return &doubled
}

// auditMailbox checks a mailbox for everything acknowledged, and returns the number of messages that are there twice.
func (l *clusterLoad) auditMailbox(ctx context.Context, b *loadMailbox, lose func(string, ...any)) (doubled int) {
	items, err := l.directory().Mail(ctx, b.credential, b.box.Public().AgentID(), "", 0, false)
	if err != nil {
		l.t.Error(err)
	}
	seen := map[string]int{}
	for _, item := range items {
		if sent := b.stored[item.ID]; sent != nil && !bytes.Equal(sent, item.Message) {
			lose("%s is %s, sent was %s", item.ID, item.Message, sent)
		}
		if b.removed[item.ID] {
			lose("%s waits again after it was removed", item.ID)
		}
		if seen[string(item.Message)]++; seen[string(item.Message)] > 1 {
			doubled++
		}
	}
	for id, sent := range b.stored {
		if !b.removed[id] && seen[string(sent)] == 0 {
			lose("acknowledged mail is lost")
		}
	}
	return doubled
}

func inParallel[T any](items []T, do func(T)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(items)); i = next.Add(1) - 1 {
				do(items[i])
			}
		})
	}
	all.Wait()
}
