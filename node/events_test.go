package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestWatch: a committed step causes one event for each record and one for its conversation.
func TestWatch(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	events, stop := sarah.Watch()
	defer stop()
	must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
	got := map[owner.Topic]owner.Event{}
	for range 2 {
		ev := <-events
		got[ev.Topic] = ev
	}
	if ev := got[owner.TopicInbox]; ev.State != "new" || ev.Peer != string(chris.ID) || ev.Conversation == "" || ev.ID == "" || ev.Foreign {
		t.Errorf("inbox event = %+v", ev)
	}
	if ev := got[owner.TopicConversations]; ev.Conversation != got[owner.TopicInbox].Conversation {
		t.Errorf("conversation event = %+v", ev)
	}
	stop()
	stop()
	if _, open := <-events; open {
		t.Error("the channel is open after stop")
	}
}

// TestEventOfForeignItem: the event of a foreign peer's message says so, because bridges read only such items.
func TestEventOfForeignItem(t *testing.T) {
	sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, mode(acl.Open))
	events, stop := sarah.Watch()
	defer stop()
	out := to("ann", "conv_1", "hello")
	if _, err := sarah.Accept(t.Context(), inbound(out, "wire:test", out.Address)); err != nil {
		t.Fatal(err)
	}
	for ev := range events {
		if ev.Topic == owner.TopicInbox {
			if !ev.Foreign {
				t.Errorf("inbox event = %+v, want it foreign", ev)
			}
			return
		}
	}
}

// TestWatcherThatSleeps: of a thousand events, a watcher that reads none gets at most what its channel holds and one
// reset, and it does not block the others.
func TestWatcherThatSleeps(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	events, stop := sarah.Watch()
	defer stop()
	const many = 1000
	for i := range many {
		if err := sarah.SetPause(t.Context(), i%2 == 0, "test"); err != nil {
			t.Fatal(err)
		}
	}
	resets, taken := 0, 0
	for len(events) > 0 {
		if ev := <-events; ev.Topic == owner.TopicReset {
			resets++
		}
		taken++
	}
	if resets != 1 || taken > 100 {
		t.Errorf("%d resets among %d events, want 1 among at most 100", resets, taken)
	}
}

// sse reads server-sent events.
type sse struct {
	t    *testing.T
	in   *bufio.Scanner
	stop func()
}

func stream(t *testing.T, url, last string) *sse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("stream: %s %q", resp.Status, resp.Header.Get("Content-Type"))
	}
	s := &sse{t: t, in: bufio.NewScanner(resp.Body), stop: func() { cancel(); resp.Body.Close() }}
	t.Cleanup(s.stop)
	s.block() // "retry:": from now on the stream is open
	return s
}

func (s *sse) block() map[string]string {
	s.t.Helper()
	fields := map[string]string{}
	for s.in.Scan() {
		if s.in.Text() == "" {
			return fields
		}
		name, value, _ := strings.Cut(s.in.Text(), ": ")
		fields[name] = value
	}
	s.t.Fatalf("the stream ended: %v", s.in.Err())
	return nil
}

// next returns the next event and its id.
func (s *sse) next() (ev owner.Event, id string) {
	s.t.Helper()
	f := s.block()
	if err := json.Unmarshal([]byte(f["data"]), &ev); err != nil || string(ev.Topic) != f["event"] {
		s.t.Fatalf("event %v: %v", f, err)
	}
	return ev, f["id"]
}

// TestEventStream: a stream reports new items, and a stream that reconnects continues after the last event that it
// saw. If that is not possible, it starts with a reset.
func TestEventStream(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	srv := httptest.NewServer(sarah.Owner)
	t.Cleanup(srv.Close)
	send := func() { must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK) }

	s := stream(t, srv.URL+"/owner/events?topics=inbox", "")
	send()
	first, id := s.next()
	if first.Topic != owner.TopicInbox || first.State != "new" || id == "" {
		t.Fatalf("event = %+v, id %q", first, id)
	}
	s.stop()
	send() // while nobody listens
	s = stream(t, srv.URL+"/owner/events?topics=inbox", id)
	if second, _ := s.next(); second.Topic != owner.TopicInbox || second.ID == first.ID {
		t.Errorf("after the gap: %+v", second)
	}
	s.stop()
	for _, last := range []string{"zzz-1", "nonsense", id + "0000000"} {
		s = stream(t, srv.URL+"/owner/events", last)
		if ev, _ := s.next(); ev.Topic != owner.TopicReset {
			t.Errorf("after %q: %+v, want a reset", last, ev)
		}
		s.stop()
	}
	if got := sarah.Ask("GET", "/events?topics=inbox,cats", nil); got.Status != http.StatusBadRequest {
		t.Errorf("unknown topic: %d", got.Status)
	}
}

// TestEventStreamsAreBounded: the sixty-fifth stream is refused, and a place becomes free when a stream ends.
func TestEventStreamsAreBounded(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	srv := httptest.NewServer(sarah.Owner)
	t.Cleanup(srv.Close)
	var streams []*sse
	for range 64 {
		streams = append(streams, stream(t, srv.URL+"/owner/events", ""))
	}
	if got := sarah.Ask("GET", "/events", nil); got.Status != http.StatusTooManyRequests {
		t.Fatalf("one stream too many: %d %s", got.Status, got.Body)
	}
	streams[0].stop()
	for range 1000 {
		resp, err := http.Get(fmt.Sprintf("%s/owner/events?topics=cats", srv.URL))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
}

// TestStreamsEndWithTheNode: all watches end when the node stops.
func TestStreamsEndWithTheNode(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	events, stop := sarah.Watch()
	defer stop()
	sarah.Stop()
	for range events {
	}
	late, stopLate := sarah.Watch()
	defer stopLate()
	if _, open := <-late; open {
		t.Error("a watch of a node that has ended is open")
	}
}
