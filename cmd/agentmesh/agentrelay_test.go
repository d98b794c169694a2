//go:build slow

package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// arcAgent is an agent that is connected to the relay of a process.
type arcAgent struct {
	t    *testing.T
	conn *websocket.Conn
}

func registerARC(t *testing.T, base, id string) (token string) {
	t.Helper()
	resp, err := http.Post(base+"/register", "application/json", strings.NewReader(`{"agent_id":"`+id+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Token == "" {
		t.Fatalf("register %s: %d, %v", id, resp.StatusCode, err)
	}
	return got.Token
}

func connectARC(t *testing.T, base, token string) *arcAgent {
	t.Helper()
	dial := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}
	conn, err := websocket.Dial(t.Context(), dial, "ws"+strings.TrimPrefix(base, "http")+"/arc?token="+token, websocket.Options{ReadLimit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Abort()
		for {
			if _, _, err := conn.Read(); err != nil {
				return
			}
		}
	})
	a := &arcAgent{t, conn}
	if f := a.next(); f.GetStr("type") != "welcome" {
		t.Fatalf("the first frame is %s", f.JSON())
	}
	return a
}

func (a *arcAgent) send(frame string) {
	a.t.Helper()
	if err := a.conn.Send(websocket.Text([]byte(frame))); err != nil {
		a.t.Fatal(err)
	}
}

func (a *arcAgent) next() wire.Value {
	a.t.Helper()
	timeout := time.AfterFunc(time.Minute, a.conn.Abort)
	defer timeout.Stop()
	_, data, err := a.conn.Read()
	if err != nil {
		a.t.Fatal(err)
	}
	v, err := wire.Parse(append([]byte(nil), data...))
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

// TestRelaySurvivesKill kills the process of a relay with all extensions. After the restart, the relay still has its
// ids, tokens, history and an open vote, and answers a query from its own directory and the history.
func TestRelaySurvivesKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "relay")
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	var server *serveProcess
	serve := func() {
		var err error
		if server, err = startServe(dir, []string{"--name", "Calendar agent", "--set=agentrelay.serve=on", "--set=agentrelay.extensions=semantic,voting,history"}, env); err != nil {
			t.Fatal(err)
		}
	}
	kill := func() { server.Process.Kill(); server.Wait() }
	serve()
	defer func() { kill() }()
	tokens := [2]string{registerARC(t, server.info.URL, "alice"), registerARC(t, server.info.URL, "bob")}
	connect := func() (alice, bob *arcAgent) {
		return connectARC(t, server.info.URL, tokens[0]), connectARC(t, server.info.URL, tokens[1])
	}
	alice, bob := connect()
	alice.send(`{"to":["*"],"type":"thought","payload":"my calendar is full"}`)
	if f := bob.next(); f.GetStr("from") != "alice" {
		t.Fatalf("bob got %s", f.JSON())
	}
	alice.send(`{"to":["*"],"type":"proposal","payload":"meet on Friday"}`)
	proposal := bob.next().GetStr("id")
	vote := `{"to":["relay"],"type":"vote","ref":"` + proposal + `","payload":{"approve":true}}`
	bob.send(vote)
	bob.send(`{"to":["relay"],"type":"ping"}`)
	if f := bob.next(); f.GetStr("type") != "pong" { // the vote is stored
		t.Fatalf("bob got %s", f.JSON())
	}
	kill()

	serve()
	alice, bob = connect()
	bob.send(`{"to":["relay"],"type":"query","payload":"calendar"}`)
	found, _ := bob.next().Get("payload")
	for _, want := range []string{`"name":"Calendar agent"`, `"source":"directory"`, `"payload":"my calendar is full"`, `"ranking":"lexical"`} {
		if !strings.Contains(string(found.JSON()), want) {
			t.Errorf("query_result %s, want %s in it", found.JSON(), want)
		}
	}
	bob.send(vote) // the relay counts only one vote per agent, also across the restart
	alice.send(vote)
	for _, a := range []*arcAgent{alice, bob} {
		f := a.next()
		payload, _ := f.Get("payload")
		if f.GetStr("type") != "vote_result" || f.GetStr("ref") != proposal || !strings.Contains(string(payload.JSON()), `"approve":2`) {
			t.Errorf("got %s, want the proposal passed by two votes", f.JSON())
		}
	}
}
