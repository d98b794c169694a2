package mailreader

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// callNode is a node that answers every call and takes every message.
type callNode struct {
	mu    sync.Mutex
	taken []string
	calls []string
}

func (n *callNode) ID() wire.AgentID { return "am_node" }
func (n *callNode) AwaitListing(ctx context.Context, _ *client.Directory) bool {
	return ctx.Err() == nil
}
func (n *callNode) Credential(*client.Directory) client.Credential     { return "credential" }
func (n *callNode) AnswerNow(context.Context, client.RelayItem) []byte { return nil }
func (n *callNode) Calls() Calls                                       { return n }
func (n *callNode) RelayCard() []byte                                  { return []byte("{}") }
func (n *callNode) AnswerCall(_ context.Context, call []byte) (string, string, []byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, string(call))
	return "task", "token", []byte("{}"), nil
}

func (n *callNode) AcceptMail(_ context.Context, item client.RelayItem) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken = append(n.taken, item.ID)
	return nil
}

// TestRefusedCallDelaysNoMail: an answer to an A2A call that the relay refuses, for good or for now, holds up no mail
// behind it. If the relay answers with another call, such as a cancel, the reader carries that call out too.
func TestRefusedCallDelaysNoMail(t *testing.T) {
	for status, acks := range map[int][]string{
		http.StatusBadRequest:      {"call", "mail"},
		http.StatusOK:              {"call", "mail"},
		http.StatusTooManyRequests: {"mail"}, // the call stays, and comes again
	} {
		var mu sync.Mutex
		var acked []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method == http.MethodPut:
				w.WriteHeader(http.StatusNoContent)
			case strings.HasSuffix(r.URL.Path, "/task"):
				w.WriteHeader(status)
				if status == http.StatusOK {
					io.WriteString(w, `{"status":"stored","a2a":{"method":"CancelTask"}}`)
					return
				}
				io.WriteString(w, `{"error":"INVALID_MESSAGE","message":"no","retry":false}`)
			case strings.HasSuffix(r.URL.Path, "/ack"):
				acked = append(acked, strings.Split(r.URL.Path, "/")[2])
				io.WriteString(w, `{"status":"acknowledged"}`)
			default:
				at := wire.FormatTime(time.Now())
				fmt.Fprintf(w, `{"messages":[{"relay_id":"call","a2a":{},"created_at":%q},{"relay_id":"mail","message":{"from":"am_a","conversation_id":"conv_1"},"created_at":%q}]}`, at, at)
			}
		}))
		h := client.NewHTTP(client.HTTPConfig{Local: true})
		dir := client.NewDirectory(srv.URL, h, nil)
		n := &callNode{}
		r := New(Config{Node: n, Dir: dir, Endpoint: true, News: func() <-chan struct{} { return nil }, Logger: slog.New(slog.DiscardHandler)})
		if found, err := r.poll(t.Context()); !found || err != nil {
			t.Errorf("status %d: poll = %v, %v", status, found, err)
		}
		if !slices.Equal(acked, acks) || !slices.Equal(n.taken, []string{"mail"}) {
			t.Errorf("status %d: acknowledged %q, want %q; taken %q", status, acked, acks, n.taken)
		}
		if next := slices.Contains(n.calls, `{"method":"CancelTask"}`); next != (status == http.StatusOK) {
			t.Errorf("status %d: calls %q", status, n.calls)
		}
		h.Close()
		srv.Close()
	}
}

// busyNode is a node that accepts no mail now, and answers what passes through.
type busyNode struct{ callNode }

func (n *busyNode) Calls() Calls { return nil }
func (n *busyNode) AnswerNow(_ context.Context, item client.RelayItem) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken = append(n.taken, item.ID)
	return nil
}

func (n *busyNode) AcceptMail(context.Context, client.RelayItem) error {
	return wire.ErrRateLimited.After(time.Minute)
}

// TestPassThroughWaitsForPostponedMail: a message that could pass through does not overtake postponed mail of its
// conversation.
func TestPassThroughWaitsForPostponedMail(t *testing.T) {
	polls := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		item := func(id, from, more string) string {
			return fmt.Sprintf(`{"relay_id":%q,"message":{"from":%q,"conversation_id":"conv_1"},"created_at":%q%s}`, id, from, wire.FormatTime(time.Now()), more)
		}
		if polls++; polls == 1 {
			io.WriteString(w, `{"messages":[`+item("first", "am_a", "")+`]}`)
			return
		}
		replyBy := fmt.Sprintf(`,"reply_by":%q`, wire.FormatTime(time.Now().Add(time.Minute)))
		io.WriteString(w, `{"messages":[`+item("second", "am_a", replyBy)+`,`+item("other", "am_b", replyBy)+`]}`)
	}))
	defer srv.Close()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	defer h.Close()
	n := &busyNode{}
	r := New(Config{
		Node: n, Dir: client.NewDirectory(srv.URL, h, nil), Endpoint: true,
		News: func() <-chan struct{} { return nil }, Logger: slog.New(slog.DiscardHandler),
	})
	for range 2 {
		if found, err := r.poll(t.Context()); !found || err != nil {
			t.Fatalf("poll = %v, %v", found, err)
		}
	}
	r.passThroughs.Wait()
	if !slices.Equal(n.taken, []string{"other"}) {
		t.Errorf("answered %q, want only that of another conversation", n.taken)
	}
}

// hangingNode is a node whose hooks hang over messages of am_a.
type hangingNode struct{ busyNode }

func (n *hangingNode) AnswerNow(ctx context.Context, item client.RelayItem) []byte {
	n.busyNode.AnswerNow(ctx, item)
	if conversationOf(item).Peer == "am_a" {
		<-ctx.Done()
	}
	return nil
}

// TestPassThroughsOfOneSender (THREATS 45): messages of one sender whose hooks hang hold up neither the reader nor what
// others send.
func TestPassThroughsOfOneSender(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var items []string
		for i := range 100 {
			from := "am_a"
			if i == 99 {
				from = "am_b"
			}
			items = append(items, fmt.Sprintf(`{"relay_id":"%d","message":{"from":%q,"conversation_id":"conv_%d"},"created_at":%q,"reply_by":%q}`,
				i, from, i, wire.FormatTime(time.Now()), wire.FormatTime(time.Now().Add(5*time.Second))))
		}
		io.WriteString(w, `{"messages":[`+strings.Join(items, ",")+`]}`)
	}))
	defer srv.Close()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	defer h.Close()
	n := &hangingNode{}
	r := New(Config{
		Node: n, Dir: client.NewDirectory(srv.URL, h, nil), Endpoint: true,
		News: func() <-chan struct{} { return nil }, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if found, err := r.poll(ctx); !found || err != nil {
		t.Fatalf("poll = %v, %v", found, err)
	}
	cancel()
	r.passThroughs.Wait()
	if len(n.taken) != maxPerSender+1 || !slices.Contains(n.taken, "99") {
		t.Errorf("answered %q, want %d of one sender and the one of another", n.taken, maxPerSender)
	}
}
