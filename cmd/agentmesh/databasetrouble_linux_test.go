//go:build slow

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestDatabaseTrouble runs two instances under load on a database that is slow, gone and full. Callers get 503 with the
// time for another attempt, nothing that was acknowledged is lost, and the processes do not grow.
func TestDatabaseTrouble(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short")
	}
	each := 3 * time.Second
	if os.Getenv(envFaults) == "long" {
		each = time.Minute
	}
	server, database, disk := startOnSmallDisk(t)
	proxy := newSlowProxy(t, server.Dir)
	c := newCluster(t, 2, proxy.through(database))
	c.startAll()
	t.Cleanup(func() {
		if t.Failed() {
			for _, i := range c.instances {
				lines := strings.Split(i.stop(), "\n")
				t.Logf("%s: %s", i.data, strings.Join(lines[max(0, len(lines)-5):], "\n"))
			}
		}
	})
	l := newClusterLoad(t, c)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	l.run(ctx, &work)
	<-time.After(each)
	before := c.sizes()
	during := func(trouble string) {
		begun := l.acknowledged()
		<-time.After(each)
		t.Logf("%s for %v: %d acknowledged", trouble, each, l.acknowledged()-begun)
	}
	resume := func(from string) {
		begun, count := time.Now(), l.acknowledged()
		err := poll(t.Context(), "nothing is acknowledged after the database was "+from, func() (bool, error) {
			if time.Since(begun) > 30*time.Second {
				return false, fmt.Errorf("nothing is acknowledged 30 s after the database was %s", from)
			}
			return l.acknowledged() > count+20, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("20 acknowledged %v after the database was %s", time.Since(begun).Round(10*time.Millisecond), from)
	}

	proxy.delay.Store(int64(200 * time.Millisecond))
	during("slow")
	proxy.delay.Store(0)
	resume("slow")

	server.Kill()
	during("gone")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	resume("gone")

	if disk != "" {
		fill := filepath.Join(disk, "filler")
		if err := fillDisk(fill); err != nil {
			t.Fatal(err)
		}
		during("full")
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
		resume("full")
	}
	stop()
	work.Wait()
	after := c.sizes()
	t.Logf("before: %v, after: %v", before, after)
	for i := range after {
		if after[i].megabytes > 2*before[i].megabytes+64 || after[i].goroutines > 2*before[i].goroutines+50 || after[i].queue > before[i].queue+20 {
			t.Errorf("process %d grew from %v to %v", i, before[i], after[i])
		}
	}
	l.audit()
	if l.refusals[ackMessage+" 503"] == 0 {
		t.Error("no message was answered with 503")
	}
}

// startOnSmallDisk starts a server on a small file system. disk is its folder, "" if this user cannot mount one.
func startOnSmallDisk(t *testing.T) (server *pgtest.Server, database, disk string) {
	t.Helper()
	server = pgtest.New(t)
	disk, err := os.MkdirTemp("", "disk") // not in t.TempDir, which only this user may enter
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=256m"); err != nil {
		t.Logf("a full disk is not tried: cannot mount a file system: %v", err)
		_ = os.Remove(disk)
		return server, server.URL("postgres"), ""
	}
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(syscall.Unmount(disk, syscall.MNT_DETACH), os.Remove(disk)); err != nil {
			t.Error(err)
		}
	})
	if err := server.MakeDatabase("small", disk); err != nil {
		t.Fatal(err)
	}
	return server, server.URL("small"), disk
}

func fillDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

type size struct{ megabytes, goroutines, queue int }

// sizes returns the sizes of all processes. A process that has lost a lease starts again by itself, as soon as the
// database answers; until then it has no socket for its owner.
func (c *cluster) sizes() (all []size) {
	c.t.Helper()
	for _, i := range c.instances {
		_, o := i.running()
		var resp *http.Response
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
		err := poll(ctx, "the process does not answer its owner", func() (ok bool, _ error) {
			var err error
			resp, err = o.HTTP.Get("http://localhost/metrics")
			return err == nil, nil
		})
		cancel()
		if err != nil {
			c.t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		value := func(name string) int {
			m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
			if m == nil {
				c.t.Fatalf("no metric %s in %s", name, text)
			}
			n, err := strconv.ParseFloat(string(m[1]), 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return int(n)
		}
		all = append(all, size{value("process_resident_memory_bytes") >> 20, value("go_goroutines"), value("agentmesh_store_queue")})
	}
	return all
}

// slowProxy is a proxy that delays each statement to a server.
type slowProxy struct {
	dir, server string // the folders of the sockets
	delay       atomic.Int64
}

func newSlowProxy(t *testing.T, server string) *slowProxy {
	t.Helper()
	p := &slowProxy{dir: t.TempDir(), server: server}
	listener, err := net.Listen("unix", filepath.Join(p.dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

// through returns the connection string through the proxy.
func (p *slowProxy) through(database string) string {
	return strings.Replace(database, url.QueryEscape(p.server), url.QueryEscape(p.dir), 1) + "&sslmode=disable"
}

func (p *slowProxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", filepath.Join(p.server, ".s.PGSQL.5432"))
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(client, server) // ends with either connection
		client.Close()
	}()
	in := bufio.NewReader(client)
	for head := 4; ; head = 5 { // the first message has no type
		message := make([]byte, head)
		if _, err := io.ReadFull(in, message); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(message[head-4:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		if head == 5 && (message[0] == 'E' || message[0] == 'Q') { // execute a statement
			<-time.After(time.Duration(p.delay.Load()))
		}
		if _, err := server.Write(append(message, body...)); err != nil {
			return
		}
	}
}
