//go:build slow

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestRestartDuringAHook (AM-75) ends serve while each kind of hook works on a message, and starts it again. Webhook and
// OpenClaw get the message again under the same id; of an exec and an A2A agent the configuration decides.
func TestRestartDuringAHook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hook   string // URL is that of the agent, or the program
		id     string // the header with the id of the call
		signal syscall.Signal
		asks   bool
	}{
		"webhook":           {hook: "webhook: 'URL', secret_file: 'SECRET'", id: "webhook-id", signal: syscall.SIGTERM},
		"webhook, killed":   {hook: "webhook: 'URL', secret_file: 'SECRET'", id: "webhook-id", signal: syscall.SIGKILL},
		"openclaw":          {hook: "openclaw: 'URL', secret_file: 'SECRET'", id: "Idempotency-Key", signal: syscall.SIGTERM},
		"a2a":               {hook: "a2a: 'URL'", signal: syscall.SIGTERM, asks: true},
		"a2a, repeatable":   {hook: "a2a: 'URL', repeatable: true", signal: syscall.SIGTERM},
		"exec":              {hook: "exec: ['URL']", signal: syscall.SIGTERM, asks: true},
		"exec, repeatable":  {hook: "exec: ['URL'], repeatable: true", signal: syscall.SIGTERM},
		"exec, for replies": {hook: "exec: ['URL'], replies: true", signal: syscall.SIGKILL, asks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrash(t)
			a := newSlowAgent(t, tt.id)
			target := a.URL
			if strings.HasPrefix(tt.hook, "exec") {
				target = a.program
			}
			secret := filepath.Join(filepath.Dir(a.program), "secret")
			if err := os.WriteFile(secret, []byte("whsec_"+strings.Repeat("QUFB", 8)), 0o600); err != nil {
				t.Fatal(err)
			}
			hooks := "--set=hooks=[{intent: mesh.message, " + strings.NewReplacer("URL", target, "SECRET", secret).Replace(tt.hook) + "}]"
			c.serve("--set=access.mode=open", hooks)
			if _, _, err := c.directory().Register(t.Context(), loadCard(c.sender, c.endpoint.URL), "the-credential-of-the-sender", c.sender); err != nil {
				t.Fatal(err)
			}
			var sent sync.WaitGroup
			sent.Go(func() { c.message(t.Context(), wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`) })
			waitFor(t, "the hook does not run", func() bool { return len(a.calls()) == 1 })
			if err := c.server.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			c.server.Wait()
			c.owner.Close()
			sent.Wait()
			c.serve("--set=access.mode=open", hooks)
			items := func() owner.List[node.Item] { return mustList[node.Item](t, c.owner, "inbox") }
			if tt.asks {
				waitFor(t, "the owner is not asked", func() bool {
					asks := mustList[acl.Ask](t, c.owner, "approvals")
					return len(asks.Items) == 1 && asks.Items[0].Kind == owner.AskInterrupted
				})
			} else {
				waitFor(t, "the hook does not run again", func() bool { return len(a.calls()) == 2 })
				if asks := mustList[acl.Ask](t, c.owner, "approvals"); len(asks.Items) > 0 {
					t.Errorf("the owner is asked %s", asks.Items[0].Title)
				}
			}
			if calls := a.calls(); tt.asks && len(calls) != 1 || tt.id != "" && calls[0] != calls[len(calls)-1] {
				t.Errorf("calls = %q", calls)
			}
			if state := items().Items[0].State; tt.asks != (state == owner.ItemInterrupted) {
				t.Errorf("item is %s", state)
			}
		})
	}
}

func mustList[T any](t *testing.T, o *daemon.Client, path string) owner.List[T] {
	t.Helper()
	raw, err := o.Call(t.Context(), "GET", path, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := daemon.Decode[owner.List[T]](raw)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// slowAgent never answers. program is an exec hook that does the same.
type slowAgent struct {
	*httptest.Server
	program string

	log string // a line for each call, with its id

	mu sync.Mutex
}

func newSlowAgent(t *testing.T, idHeader string) *slowAgent {
	dir := t.TempDir()
	a := &slowAgent{program: filepath.Join(dir, "hook"), log: filepath.Join(dir, "calls")}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var call struct{ Method string }
		json.Unmarshal(body, &call)
		a.add(cmp.Or(r.Header.Get(idHeader), call.Method))
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	script := "#!/bin/sh\necho call >> " + a.log + "\nexec sleep 60\n"
	if err := os.WriteFile(a.program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *slowAgent) add(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f, err := os.OpenFile(a.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		fmt.Fprintln(f, id)
		f.Close()
	}
}

func (a *slowAgent) calls() []string {
	raw, _ := os.ReadFile(a.log)
	return slices.Collect(strings.FieldsSeq(string(raw)))
}
