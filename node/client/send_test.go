package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

func peerAt(endpoint string) Peer {
	return Peer{Card: wire.Card{ID: "am_peer", Endpoint: endpoint}, Reach: Loopback}
}

// TestSendClassification checks which errors may be tried again, and after which the message may have been processed
// (AM-47, AM-48).
func TestSendClassification(t *testing.T) {
	refuse := func(code wire.Code, retry bool) string {
		return fmt.Sprintf(`{"error":{"code":%q,"message":"no\u001b[2J","retry":%v}}`, code, retry)
	}
	tests := []struct {
		name             string
		status           int
		header           map[string]string
		body             string
		retry, processed bool
		after            time.Duration
	}{
		{name: "redirect", status: 307, header: map[string]string{"Location": "/x"}},
		{name: "redirect that asks to retry", status: 302, body: refuse(wire.AgentUnavailable, true)},
		{name: "not modified", status: 304},
		{name: "plain 400", status: 400, body: "nope"},
		{name: "refused 400", status: 400, body: refuse(wire.InvalidMessage, false)},
		{name: "400 with retry", status: 400, body: refuse(wire.InvalidMessage, true), retry: true, processed: true},
		{name: "401", status: 401, body: refuse(wire.InvalidSignature, false)},
		{name: "404", status: 404},
		{name: "408", status: 408, retry: true, processed: true},
		{name: "409", status: 409, body: refuse(wire.ConversationClosed, false)},
		{name: "425", status: 425, retry: true, processed: true},
		{name: "429", status: 429, header: map[string]string{"Retry-After": "36"}, body: refuse(wire.RateLimited, true), retry: true, after: 36 * time.Second},
		{name: "429 without a body", status: 429, retry: true},
		{name: "500", status: 500, body: "<html>", retry: true, processed: true},
		{name: "500 final", status: 500, body: refuse(wire.AgentUnavailable, false), processed: true},
		{name: "502", status: 502, retry: true, processed: true},
		{name: "503", status: 503, header: map[string]string{"Retry-After": "10"}, body: refuse(wire.AgentUnavailable, true), retry: true, after: 10 * time.Second},
		{name: "503 final", status: 503, body: refuse(wire.AgentUnavailable, false)},
		{name: "Retry-After beyond all bounds", status: 503, header: map[string]string{"Retry-After": "999999999"}, retry: true, after: 72 * time.Hour},
		{name: "Retry-After that is none", status: 503, header: map[string]string{"Retry-After": "-5"}, retry: true},
	}
	h := local(t, HTTPConfig{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("sent %s as %q", r.Method, r.Header.Get("Content-Type"))
				}
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			})
			_, err := h.Send(t.Context(), peerAt(srv.URL), []byte(`{}`))
			e, ok := errors.AsType[*SendError](err)
			if !ok {
				t.Fatalf("Send() = %v, want a SendError", err)
			}
			if e.Retry != tt.retry || e.Processed != tt.processed || e.After != tt.after || e.Status != tt.status {
				t.Errorf("Send() = retry %v, processed %v, after %v, status %d; want %v, %v, %v, %d (%v)",
					e.Retry, e.Processed, e.After, e.Status, tt.retry, tt.processed, tt.after, tt.status, e)
			}
			if strings.ContainsRune(e.Error(), 0x1b) {
				t.Errorf("the error contains the peer's escape sequence: %q", e.Error())
			}
		})
	}
}

// TestSendErrorTable checks that every row of the error table comes back as the same error (AM-28).
func TestSendErrorTable(t *testing.T) {
	h := local(t, HTTPConfig{})
	for _, row := range wire.Table() {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(row.Status)
			w.Write(row.AppendJSON(nil))
		})
		_, err := h.Send(t.Context(), peerAt(srv.URL), []byte(`{}`))
		e, ok := errors.AsType[*SendError](err)
		if !ok || e.Refusal == nil || e.Refusal.Code != row.Code || e.Refusal.Message != row.Message || e.Retry != row.Retry {
			t.Errorf("%s came back as %v", row.Row(), err)
		}
		srv.Close()
	}
}

func TestSendNetworkErrors(t *testing.T) {
	const closedPort = "http://127.0.0.1:1025/" // no system gives this port to a listener that asks for any free one
	reset := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		panic(http.ErrAbortHandler)
	})
	half := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "{")
	})
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		<-r.Context().Done()
	})
	huge := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", MaxAnswer+1))
	})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never completes a handshake
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	tests := []struct {
		name, endpoint   string
		retry, processed bool
	}{
		{"reset", reset.URL, true, true},
		{"half an answer", half.URL, true, true},
		{"hang", hang.URL, true, true},
		{"huge", huge.URL, false, true},
		{"closed port", closedPort, true, false},
		{"no handshake", "https://" + silent.Addr().String(), true, false},
		{"guarded allow_private", "http://192.168.7.7/agentmesh", false, false},
		{"guarded port must be", "https://peer.example:444/agentmesh", false, false},
		{"not a URL", "http://[", false, false},
	}
	h := local(t, HTTPConfig{Connect: 150 * time.Millisecond, Answer: 200 * time.Millisecond})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := h.Send(t.Context(), peerAt(tt.endpoint), []byte(`{}`))
			e, ok := errors.AsType[*SendError](err)
			if !ok || e.Retry != tt.retry || e.Processed != tt.processed {
				t.Errorf("Send() = %+v (%v), want retry %v, processed %v", e, err, tt.retry, tt.processed)
			}
			if strings.Contains(tt.name, "guarded") && !strings.Contains(e.Hint(), tt.name[len("guarded "):]) {
				t.Errorf("Hint() = %q", e.Hint())
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := h.Send(ctx, peerAt(closedPort), []byte(`{}`))
		if e, ok := errors.AsType[*SendError](err); !ok || !e.Retry || e.Processed || !errors.Is(err, context.Canceled) {
			t.Errorf("Send() = %v", err)
		}
	})
}

// TestAnswer checks which answers count as delivered (AM-49).
func TestAnswer(t *testing.T) {
	tests := []struct {
		status  int
		body    string
		relayed string
		empty   bool
	}{
		{202, `{"relay_id":"relay_1","status":"queued"}`, "relay_1", false},
		{202, `{"relay_id":"relay_1","status":"queued","signature":"x"}`, "", false},
		{200, `{"relay_id":"relay_1","status":"queued"}`, "", false},
		{202, `{"relay_id":"relay_1","status":"queued"`, "", false},
		{202, `{"status":"held"}`, "", false},
		{204, ``, "", true},
		{200, "\n", "", true},
	}
	h := local(t, HTTPConfig{})
	for _, tt := range tests {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.body)
		})
		a, err := h.Send(t.Context(), peerAt(srv.URL), []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		id, ok := a.Receipt()
		if id != tt.relayed || ok != (tt.relayed != "") || a.Empty() != tt.empty {
			t.Errorf("%d %s: relayed %q, empty %v; want %q, %v", tt.status, tt.body, id, a.Empty(), tt.relayed, tt.empty)
		}
		if !tt.empty && !ok {
			if _, err := a.Message(); !errors.Is(err, ErrReplyUnverified) {
				t.Errorf("%d %s: Message() = %v, want ErrReplyUnverified", tt.status, tt.body, err)
			}
		}
	}
}

// TestSendClock checks that the peer's Date shows how far our clock is off (AM-84).
func TestSendClock(t *testing.T) {
	h := local(t, HTTPConfig{})
	for _, ahead := range []time.Duration{0, 20 * time.Minute, -2 * time.Hour} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			w.WriteHeader(400)
			w.Write(wire.ErrTimeWindow.AppendJSON(nil))
		})
		_, err := h.Send(t.Context(), peerAt(srv.URL), []byte(`{}`))
		e, _ := errors.AsType[*SendError](err)
		got, off := e.ClockOff()
		if (got-ahead).Abs() > 5*time.Second || off != (ahead != 0) || (e.Hint() != "") != off {
			t.Errorf("ClockOff() = %v, %v, hint %q; want %v", got, off, e.Hint(), ahead)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(202, []byte(`{"relay_id":"relay_1","status":"queued"}`))
	f.Add(400, []byte(`{"error":{"code":"INVALID_MESSAGE","message":"x","retry":false}}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		a := Answer{Status: status, Body: body}
		a.Receipt()
		if _, err := a.Message(); err != nil && !errors.Is(err, ErrReplyUnverified) {
			t.Errorf("Message() = %v", err)
		}
		if status >= 300 {
			for _, r := range newSendError(a).Error() {
				if r < ' ' || r == 0x7f {
					t.Errorf("control character %q in the error", r)
				}
			}
		}
	})
}
