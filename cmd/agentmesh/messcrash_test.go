//go:build slow

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// messCrash is an exchange in a real process with everything that it has acknowledged.
type messCrash struct {
	t      *testing.T
	dir    string
	server *serveProcess
	keys   map[string]string

	mu      sync.Mutex
	made    []string          // acknowledged requests
	holders map[string]string // acknowledged claims
	done    map[string]bool   // acknowledged completions
}

// TestMESSCrash kills the process during requests, racing claims and completions. Afterwards, the exchange has
// everything that it acknowledged, no claim has moved to another executor, and the thread directory catches up.
func TestMESSCrash(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" || testing.Short() {
		t.Skip("no SIGKILL on Windows, or -short")
	}
	c := &messCrash{t: t, dir: filepath.Join(t.TempDir(), "data"), keys: map[string]string{}, holders: map[string]string{}, done: map[string]bool{}}
	t.Cleanup(func() {
		if c.server != nil {
			c.kill()
		}
	})
	for range 3 {
		c.start()
		c.load()
	}
	c.start()
	c.audit()
	t.Logf("acknowledged: %d requests, %d claims, %d completions", len(c.made), len(c.holders), len(c.done))
}

func (c *messCrash) start() {
	c.t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	var err error
	c.server, err = startServe(c.dir, []string{
		"--set=log.level=warn", "--set=mess.serve=on", "--set=mess.calls_per_minute=0", "--set=mess.threads_per_hour=0", "--set=mess.registrations_per_hour=0",
		"--set=mess.directory=" + filepath.Join(filepath.Dir(c.dir), "threads"),
	}, env)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, id := range []string{"agent", "bob", "eve"} {
		if c.keys[id] == "" {
			status, v := c.call(c.t.Context(), "", http.MethodPost, "register", `{"executor_id":"`+id+`"}`)
			if status != http.StatusCreated {
				c.t.Fatalf("register %s: %d %s", id, status, v.JSON())
			}
			c.keys[id] = v.GetStr("api_key")
		}
	}
}

func (c *messCrash) kill() {
	c.server.Process.Kill()
	c.server.Wait()
	c.server = nil
}

// call makes a call and returns its status, or 0 if the process has been killed.
func (c *messCrash) call(ctx context.Context, key, method, path, body string) (int, wire.Value) {
	req, err := http.NewRequestWithContext(ctx, method, c.server.info.URL+"/api/v1/exchanges/home/"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, wire.Value{}
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, wire.Value{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, wire.Value{}
	}
	v, _ := wire.ParseLimits(data, wire.MaxDepth, 1<<20)
	return resp.StatusCode, v
}

// load uses the exchange for a while and then kills its process.
func (c *messCrash) load() {
	ctx, cancel := context.WithCancel(c.t.Context())
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if !c.runThread(ctx, fmt.Sprintf("%d-%d-%d", time.Now().UnixNano(), w, i)) {
					return
				}
			}
		})
	}
	waitForLoad(c.t, crashLoad, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.done) > 0
	})
	server := c.server
	server.Process.Kill()
	server.Wait()
	cancel()
	work.Wait()
	c.server = nil
}

// runThread makes a thread, races two executors for it, and completes it. It returns false if the process died.
func (c *messCrash) runThread(ctx context.Context, id string) bool {
	status, v := c.call(ctx, c.keys["agent"], http.MethodPost, "requests", `{"intent":"look","id":"`+id+`"}`)
	ref := v.GetStr("ref")
	if status != http.StatusCreated {
		return false
	}
	c.mu.Lock()
	c.made = append(c.made, ref)
	c.mu.Unlock()
	var race sync.WaitGroup
	for _, who := range []string{"bob", "eve"} {
		race.Go(func() {
			if status, _ := c.call(ctx, c.keys[who], http.MethodPatch, "requests/"+ref, `{"status":"claimed"}`); status == http.StatusOK {
				c.mu.Lock()
				if first := c.holders[ref]; first != "" {
					c.t.Errorf("%s was claimed by %s and by %s", ref, first, who)
				}
				c.holders[ref] = who
				c.mu.Unlock()
			}
		})
	}
	race.Wait()
	c.mu.Lock()
	holder := c.holders[ref]
	c.mu.Unlock()
	if holder == "" {
		return false
	}
	status, _ = c.call(ctx, c.keys[holder], http.MethodPatch, "requests/"+ref, `{"status":"completed","mess":[{"response":{"re":"`+ref+`","content":["done"]}}]}`)
	if status == http.StatusOK {
		c.mu.Lock()
		c.done[ref] = true
		c.mu.Unlock()
	}
	return status == http.StatusOK
}

func (c *messCrash) audit() {
	ctx := c.t.Context()
	for _, ref := range c.made {
		status, v := c.call(ctx, c.keys["agent"], http.MethodGet, "requests/"+ref, "")
		thread, _ := v.Get("thread")
		holder := thread.GetStr("executor_id")
		switch state := thread.GetStr("status"); {
		case status != http.StatusOK:
			c.t.Errorf("%s is lost: %d", ref, status)
		case c.done[ref] && (state != "completed" || !strings.Contains(string(thread.JSON()), `"done"`)):
			c.t.Errorf("%s is %s, it was completed", ref, state)
		case c.holders[ref] != "" && holder != c.holders[ref]:
			c.t.Errorf("%s is held by %q, it was %s", ref, holder, c.holders[ref])
		case (holder == "") != (state == "pending"):
			c.t.Errorf("%s is %s and held by %q", ref, state, holder)
		default:
			c.auditFiles(ref, map[string]string{"pending": "received", "claimed": "executing", "completed": "finished"}[state])
		}
	}
}

// auditFiles checks that the files of a thread are in the folder of its state and in no other folder.
func (c *messCrash) auditFiles(ref, state string) {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		found, err := filepath.Glob(filepath.Join(filepath.Dir(c.dir), "threads", "exchange", "*", ref, "000-"+ref+".messe-af.yaml"))
		if err == nil && len(found) == 1 && strings.Contains(found[0], "state="+state+string(filepath.Separator)) {
			return
		}
		if err != nil || time.Now().After(deadline) {
			c.t.Fatalf("the files of %s, which is %s, are %v, %v", ref, state, found, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
