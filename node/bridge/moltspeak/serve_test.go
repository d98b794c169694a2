package moltspeak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

func (r *rig) serve() *httptest.Server {
	edge := httpapi.New(httpapi.Config{Local: true})
	r.b.Mount(edge.Echo())
	srv := httptest.NewServer(apitest.Check(r.t, edge.Handler()))
	r.t.Cleanup(srv.Close)
	return srv
}

func post(t *testing.T, to, kind string, body []byte) (int, []byte, http.Header) {
	t.Helper()
	resp, err := http.Post(to, kind, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, got, resp.Header
}

// TestServeMessage: a reply is wrapped as the request was (MS-17). An unreadable request also gets a signed error
// (MS-45, MS-52).
func TestServeMessage(t *testing.T) {
	r, _ := newTestRig(t, nil)
	to := r.serve().URL + "/moltspeak/v0.1/message"
	bare := r.sign(cat, r.draft(cat, message.OpPing, `{"nonce":"n"}`))
	status, body, _ := post(t, to, "application/json", bare)
	if p, e := message.ReadPacket(body, nil); status != http.StatusOK || e != nil || p.Enveloped || p.Tree.GetStr("op") != "pong" {
		t.Errorf("bare: %d %s", status, body)
	}
	status, body, _ = post(t, to, "application/json", message.Wrap(mustTree(t, string(r.sign(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)))), true))
	if p, e := message.ReadPacket(body, nil); status != http.StatusOK || e != nil || !p.Enveloped || p.Tree.GetStr("op") != "pong" {
		t.Errorf("enveloped: %d %s", status, body)
	}
	for _, tt := range []struct {
		kind   string
		body   []byte
		status int
		code   message.Code
	}{
		{"application/json", []byte("null"), 400, message.CodeParse}, {"application/json", []byte("{"), 400, message.CodeParse}, {"application/json", nil, 400, message.CodeParse},
		{"text/plain", bare, 415, message.CodeSchema}, {"application/json", bytes.Repeat([]byte(" "), 10<<20), 413, message.CodeSchema},
		{"application/json", []byte(goodMessage), 400, message.CodeInvalidParam},
		{"application/json", []byte(strings.Replace(goodMessage, `"agent":"b","org":"p"`, `"agent":"me","org":"home"`, 1)), 401, message.CodeAuthFailed},
	} {
		status, body, _ := post(t, to, tt.kind, tt.body)
		p, e := message.ReadPacket(body, nil)
		if e != nil {
			t.Errorf("%.20q: %s", tt.body, body)
			continue
		}
		m, e := message.Parse(p.Tree)
		if e != nil || status != tt.status || m.Op != message.OpError || message.Code(m.P.GetStr("code")) != tt.code || m.Verify(keyOf("me@home").Public()) != nil {
			t.Errorf("%.20q as %s: %d %s, want %d %s", tt.body, tt.kind, status, body, tt.status, tt.code)
		}
	}
	answerless := r.draft(cat, message.OpStream, `{"action":"start","stream_id":"s"}`)
	if status, body, _ := post(t, to, "application/json", r.sign(cat, answerless)); status != http.StatusAccepted || strings.TrimSpace(string(body)) != "{}" {
		t.Errorf("a message that needs no answer: %d %s", status, body)
	}
	for range 5000 {
		status, _, header := post(t, to, "application/json", r.sign(dog, r.draft(dog, message.OpPing, `{"nonce":1}`)))
		if status == http.StatusTooManyRequests {
			if header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
			return
		}
	}
	t.Error("5000 messages in a row were not limited")
}

func TestServeBatch(t *testing.T) {
	r, _ := newTestRig(t, nil)
	to := r.serve().URL + "/moltspeak/v0.1/batch"
	one, three := r.sign(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)), r.sign(dog, r.draft(dog, message.OpPing, `{"nonce":3}`))
	list := fmt.Sprintf(`[%s,null,{"moltspeak":"0.1","envelope":{"encrypted":false},"message":%s}]`, one, three)
	for _, body := range []string{list, `{"moltspeak":"0.1","batch":` + list + `}`} {
		status, got, _ := post(t, to, "application/json", []byte(body))
		var answers []json.RawMessage
		if err := json.Unmarshal(got, &answers); err != nil || status != http.StatusOK || len(answers) != 3 {
			t.Fatalf("%d %s", status, got)
		}
		var ops []string
		for _, a := range answers {
			p, e := message.ReadPacket(a, nil)
			if e != nil {
				t.Fatal(e)
			}
			ops = append(ops, p.Tree.GetStr("op"))
		}
		if strings.Join(ops, " ") != "pong error pong" {
			t.Errorf("answers: %v", ops)
		}
	}
	for _, body := range []string{"[" + strings.Repeat("1,", message.MaxEntries) + "1]", `{"batch":[]}`, `{"moltspeak":"0.1","batch":{}}`, "1"} {
		if status, got, _ := post(t, to, "application/json", []byte(body)); status != http.StatusBadRequest {
			t.Errorf("%.30s: %d %s", body, status, got)
		}
	}
	if status, _, _ := post(t, to, "application/json", bytes.Repeat([]byte(" "), message.MaxBatch+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("more than 10 MiB: %d", status)
	}
}

func dial(t *testing.T, srv *httptest.Server) *websocket.Conn {
	t.Helper()
	c, err := websocket.Dial(t.Context(), func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}, "ws"+strings.TrimPrefix(srv.URL, "http")+"/moltspeak/v0.1/stream", websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Abort)
	return c
}

// next reads one of our messages, or returns how the connection ended.
func next(t *testing.T, c *websocket.Conn) (wire.Value, error) {
	t.Helper()
	_, raw, err := c.Read()
	if err != nil {
		return wire.Value{}, err
	}
	p, e := message.ReadPacket(raw, nil)
	if e != nil {
		t.Fatalf("frame: %v: %s", e, raw)
	}
	return p.Tree, nil
}
