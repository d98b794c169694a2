package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/websocket"
)

const gatewaySpace = `
space: {id: demo}
participants:
  human: {tokens: [human-token], capabilities: ["*"]}
`

// runGateway runs `agentmesh mew gateway` on a free port until the context ends.
func runGateway(ctx context.Context, t *testing.T, dir string, flags ...string) (port string, done chan int) {
	t.Helper()
	out, in := io.Pipe()
	done = make(chan int, 1)
	go func() {
		args := append([]string{"mew", "gateway", "--port", "0", "--log-level", "warn", "--space-config", filepath.Join(dir, "space.yaml"), "--no-auto-start"}, flags...)
		done <- run(ctx, args, strings.NewReader(""), in, io.Discard)
		in.Close()
	}()
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the gateway ended with %d before it listened", <-done)
	}
	go io.Copy(io.Discard, lines)
	port, ok := strings.CutPrefix(strings.TrimSpace(first), "Gateway listening on port ")
	if !ok {
		t.Fatalf("the gateway printed %q", first)
	}
	return port, done
}

// TestMewGateway: the gateway runs with only a space.yaml and the flags of the reference gateway, on both loopback
// addresses. When it stops, it closes connections with 1001. Invited participants survive the restart.
func TestMewGateway(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "space.yaml"), []byte(gatewaySpace), 0o600); err != nil {
		t.Fatal(err)
	}
	console := filepath.Join(dir, "console.log")
	t.Setenv("GATEWAY_LOG_FILE", console)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port, done := runGateway(ctx, t, dir)
	resp, err := http.Get("http://127.0.0.1:" + port + "/health")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Contains(body, []byte(`"status":"ok"`)) {
		t.Errorf("/health says %s, %v", body, err)
	}
	conn, err := websocket.Dial(t.Context(), func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}, "ws://localhost:"+port, websocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn.Send(websocket.Text([]byte(`{"type":"join","token":"human-token","participantId":"human"}`)))
	if _, data, err := conn.Read(); err != nil || !bytes.Contains(data, []byte(`"system/welcome"`)) {
		t.Errorf("read %s, %v", data, err)
	}
	conn.Send(websocket.Text([]byte(`{"kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["chat"]}}`)))
	if _, data, err := conn.Read(); err != nil || !bytes.Contains(data, []byte(`"space/invite-ack"`)) {
		t.Errorf("read %s, %v", data, err)
	}
	cancel()
	for err = nil; err == nil; {
		_, _, err = conn.Read()
	}
	if ce, ok := errors.AsType[*websocket.CloseError](err); !ok || ce.Code != websocket.CodeGoingAway || !ce.Remote {
		t.Errorf("the connection ended with %v, want 1001", err)
	}
	if code := <-done; code != exit.OK {
		t.Errorf("the gateway ended with %d", code)
	}
	if log, err := os.ReadFile(console); err != nil || !strings.Contains(string(log), "Gateway listening on port "+port) {
		t.Errorf("the console log holds %q, %v", log, err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	port, done = runGateway(ctx, t, dir)
	token, err := os.ReadFile(filepath.Join(dir, "tokens", "guest.token"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:"+port+"/participants/guest/messages", strings.NewReader(`{"kind":"chat"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if resp, err = http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the guest is not known after a restart: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if code := <-done; code != exit.OK {
		t.Errorf("the gateway ended with %d", code)
	}
}

// TestMewGatewayRefuses: the gateway does not start with an invalid space file, a port in use, or an unknown log level.
func TestMewGatewayRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "space.yaml")
	start := func(args ...string) int {
		return run(t.Context(), append([]string{"mew", "gateway", "start", "-s", file}, args...), strings.NewReader(""), io.Discard, io.Discard)
	}
	if code := start("-p", "0"); code != exit.Config {
		t.Errorf("without a file: %d, want %d", code, exit.Config)
	}
	if err := os.WriteFile(file, []byte("space: {id: demo}\nparticipants: {a: {tokens: [x]}, b: {tokens: [x]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := start("-p", "0"); code != exit.Config {
		t.Errorf("with one token for two participants: %d, want %d", code, exit.Config)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if code := start("-p", port); code != exit.Unavailable {
		t.Errorf("with a port in use: %d, want %d", code, exit.Unavailable)
	}
	if code := start("-l", "loud"); code != exit.Usage {
		t.Errorf("with an unknown log level: %d, want %d", code, exit.Usage)
	}
}

// TestMewGatewayPassesControl: the drop-in gateway is not stricter than the program that it replaces: it passes on control
// envelopes that name what they are about in another way than the specification demands, or not at all. A hosted space
// stays strict; see gateway.TestErrors.
func TestMewGatewayPassesControl(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "space.yaml"), []byte(gatewaySpace), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port, done := runGateway(ctx, t, dir)
	for _, body := range []string{
		`{"id":"so-11","kind":"stream/open","to":["calc"],"correlation_id":["x"],"payload":{"stream_id":"s-1","encoding":"text"}}`, // MEW-1
		`{"id":"sc-11","kind":"stream/close","to":["calc"],"correlation_id":["so-11"],"payload":{"reason":"complete"}}`,
		`{"id":"stream-close-1","to":["agent-1"],"kind":"stream/close","correlation_id":["stream-open-1"],"payload":{"reason":"complete"}}`, // spec 3.10.4
		`{"kind":"stream/close"}`,
		`{"id":"rc1","kind":"reasoning/cancel","correlation_id":["c1"],"payload":{"context":"r-1","reason":"stop"}}`, // MEW-2
		`{"kind":"reasoning/thought","payload":{"message":"hm"}}`,
		`{"kind":"reasoning/conclusion"}`,
		`{"kind":"chat/acknowledge"}`,
		`{"kind":"chat/cancel"}`,
		`{"kind":"mcp/withdraw","payload":{"reason":"changed my mind"}}`,
		`{"kind":"mcp/reject"}`,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/participants/human/messages", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer human-token")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"accepted"`)) {
			t.Errorf("%s: %d %s, %v", body, resp.StatusCode, answer, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	<-done
}
