//go:build slow || clockstep

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// cluster is several processes of one agent and its directory on one PostgreSQL database, behind a reverse proxy.
type cluster struct {
	t         *testing.T
	database  string
	args      []string
	front     *httptest.Server
	instances []*instance
	turn      atomic.Uint64 // of the reverse proxy
}

// instance is a process of a cluster. A test may kill the process and start it again on the same data.
type instance struct {
	data string
	env  []string // besides that of the test

	mu     sync.Mutex
	server *serveProcess // nil while it does not run
	owner  *daemon.Client
}

// running returns the process and its owner API, or nil.
func (i *instance) running() (*serveProcess, *daemon.Client) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.server, i.owner
}

// newCluster starts n processes. The first one makes the keys, and the others get copies of them.
func newCluster(t *testing.T, n int, database string, args ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, database: database}
	for i := range n {
		c.instances = append(c.instances, &instance{data: filepath.Join(t.TempDir(), fmt.Sprint("data", i))})
	}
	c.front = newFront(c.next) // processes of an earlier test may still ask its port
	t.Cleanup(c.front.Close)
	c.args = append([]string{
		"--roles=directory,node", "--set=store.postgres=" + database, "--set=public_url=" + c.front.URL, "--set=network.allow_private=127.0.0.0/8",
		"--set=access.mode=open", "--set=limits.messages_new_conversations=0", "--set=limits.messages_conversation=0",
		"--set=limits.messages_total=0", "--set=limits.requests_per_minute=0", "--set=registration.cards_per_token=0",
		"--set=registration.cards_per_host=0", "--set=registration.per_hour=0", "--set=network.max_connections_per_address=0",
		"--set=log.level=warn",
	}, args...)
	return c
}

// newFront starts a reverse proxy that sends each request to the process that next returns.
func newFront(next func() *serveProcess) *httptest.Server {
	return httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: next().info.Address})
			r.SetXForwarded()
		},
		ErrorLog: log.New(io.Discard, "", 0), // processes are killed
	})
}

func (c *cluster) startAll() {
	c.t.Helper()
	for i, inst := range c.instances {
		if i > 0 {
			if err := copyKeys(c.instances[0].data, inst.data); err != nil {
				c.t.Fatal(err)
			}
		}
		if err := c.start(inst); err != nil {
			c.t.Fatal(err)
		}
	}
}

// copyKeys makes the data directory of a further instance, with what all instances of an agent have in common.
func copyKeys(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"signing.key", "age.key", "credential", "card.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a directory without a node has none
			return err
		}
	}
	return nil
}

func (c *cluster) start(i *instance) error {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	server, err := startServe(i.data, c.args, append(env, i.env...))
	if err != nil {
		return err
	}
	c.t.Cleanup(func() { // a process that was killed already does not mind
		_ = server.Process.Signal(syscall.SIGCONT)
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	owner := daemon.Running(c.t.Context(), i.data)
	if owner == nil {
		return errors.New("the owner API does not answer")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.server, i.owner = server, owner
	return nil
}

func (i *instance) kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = i.server.Process.Kill()
	_ = i.server.Wait()
	i.owner.Close()
	i.server, i.owner = nil, nil
}

// awaitServing waits until every process answers. A process that has lost a lease starts again by itself.
func (c *cluster) awaitServing(ctx context.Context) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := poll(ctx, "an instance does not serve", func() (bool, error) {
		for _, i := range c.instances {
			server, owner := i.running()
			if _, err := owner.Call(ctx, "GET", "approvals", nil, nil); err != nil {
				return false, nil
			}
			resp, err := http.Get("http://" + server.info.Address + "/readyz")
			if err != nil {
				return false, nil
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) next() *serveProcess {
	server, _ := c.nextOwner()
	return server
}

// nextOwner returns the process whose turn it is among those that run, and its owner API.
func (c *cluster) nextOwner() (*serveProcess, *daemon.Client) {
	for {
		if server, owner := c.instances[c.turn.Add(1)%uint64(len(c.instances))].running(); server != nil {
			return server, owner
		}
		time.Sleep(time.Millisecond)
	}
}

// holder returns the process that has a lease, or nil.
func (c *cluster) holder(lease string) *instance {
	names, err := pgtest.Query(c.database, "select holder_name from leases where until > clock_timestamp() and name = '"+lease+"'")
	if err != nil || len(names) == 0 {
		return nil
	}
	for _, i := range c.instances {
		if server, _ := i.running(); server != nil && strings.HasSuffix(names[0], ":"+strconv.Itoa(server.Process.Pid)) {
			return i
		}
	}
	return nil
}

// awaitHolder waits until a process other than the previous holder has a lease, and returns that process.
func (c *cluster) awaitHolder(lease string, previous *instance) *instance {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	var holder *instance
	err := poll(ctx, "nobody takes the lease "+lease, func() (bool, error) {
		holder = c.holder(lease)
		return holder != nil && holder != previous, nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return holder
}

func (i *instance) stop() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = i.server.Process.Signal(os.Interrupt)
	_ = i.server.Wait()
	i.owner.Close()
	log := i.server.log.String()
	i.server, i.owner = nil, nil
	return log
}

// impatient is a client that does not wait for a process that stands still.
var impatient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
