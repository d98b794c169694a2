package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// fakeOwner serves h as the owner API of a new data directory.
func fakeOwner(t *testing.T, h http.HandlerFunc) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "am") // short, because the paths of sockets have a length limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", httpapi.OwnerSocket(dir))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.Serve(l) }() // ends with Close
	return dir
}

// TestMESSIsSentAgain: a command repeats a lost call once, with the same idempotency key, and never a refused call.
func TestMESSIsSentAgain(t *testing.T) {
	type sent struct{ path, key, match, body string }
	const nothing, connection, answer, always = 0, 1, 2, 3
	var mu sync.Mutex
	var got []sent
	lose := nothing
	dir := fakeOwner(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"thread":{"ref":"r","serial":4,"messages":[]}}`))
			return
		}
		body, _ := io.ReadAll(r.Body)
		got = append(got, sent{r.URL.Path, r.Header.Get("Idempotency-Key"), r.Header.Get("If-Match"), string(body)})
		switch {
		case strings.Contains(string(body), "refuse"):
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"error":{"code":"INVALID_MESSAGE","message":"no"}}`))
		case lose == answer && len(got) == 1:
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"MESS":`)) // and no more
		case lose == connection && len(got) == 1 || lose == always:
			panic(http.ErrAbortHandler)
		default:
			_, _ = w.Write([]byte(`{"MESS":[{"ack":{"ref":"there"}}]}`))
		}
	})
	run := func(want, what int, args ...string) ([]sent, string) {
		t.Helper()
		mu.Lock()
		got, lose = nil, what
		mu.Unlock()
		code, out, errOut := runCommand(append([]string{"--data", dir, "mess"}, args...)...)
		if code != want {
			t.Fatalf("%v: exit %d, want %d: %s", args, code, want, errOut)
		}
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got), out
	}
	keys := map[string]bool{}
	for _, args := range [][]string{
		{"request", "come and look"}, {"request", "--link", "garden", "come"}, {"update", "r", "in_progress"}, {"complete", "r", "done"}, {"cancel", "r"}, {"answer", "r", "yes"}, {"confirm", "r"},
	} {
		reads := args[0] == "answer" || args[0] == "confirm"
		for what := range always {
			calls, out := run(exit.OK, what, args...)
			if len(calls) != 1+min(what, 1) || !strings.Contains(out, "there") {
				t.Fatalf("%v: sent %d times, printed %s", args, len(calls), out)
			}
			for _, c := range calls {
				if c != calls[0] || len(c.key) < 20 || reads != (c.match == `"4"`) {
					t.Errorf("%v: sent %+v and %+v", args, calls[0], c)
				}
			}
			if keys[calls[0].key] {
				t.Error("two commands used the same idempotency key")
			}
			keys[calls[0].key] = true
		}
	}
	if calls, _ := run(exit.No, nothing, "request", "refuse this"); len(calls) != 1 {
		t.Errorf("a refused request was sent %d times, want once", len(calls))
	}
	if calls, _ := run(exit.Unavailable, always, "request", "come"); len(calls) != 2 {
		t.Errorf("a request that is always lost was sent %d times, want twice", len(calls))
	}
}

// TestMESSFetchToStandardOutput: a terminal gets only plain text. A pipe gets every file unchanged.
func TestMESSFetchToStandardOutput(t *testing.T) {
	var file string
	dir := fakeOwner(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(file)) })
	fetch := func(out io.Writer, more ...string) (int, string) {
		var errOut bytes.Buffer
		args := append([]string{"--data", dir, "mess", "fetch", "r", "att-002-file-a.txt", "--out", "-"}, more...)
		return run(context.Background(), args, strings.NewReader(""), out, &errOut), errOut.String()
	}
	for name, c := range map[string]struct {
		file  string
		plain bool
	}{
		"text": {"one\n\ttwo\r\nthree ü", true}, "nothing": {"", true}, "a photo": {"\xff\xd8\xff\x00", false}, "an escape": {"\x1b]0;title\a", false},
		"a hidden turn": {"a\u202eb", false}, "a return": {"good\rbad", false}, "not UTF-8": {"\xe4", false},
	} {
		t.Run(name, func(t *testing.T) {
			file = c.file
			var out bytes.Buffer
			if code, errOut := fetch(&out); code != exit.OK || out.String() != c.file {
				t.Errorf("to a pipe: exit %d, %q, %s", code, out.String(), errOut)
			}
			if runtime.GOOS != "linux" {
				return
			}
			tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
			if err != nil {
				t.Skip(err)
			}
			defer tty.Close()
			code, errOut := fetch(tty)
			if c.plain && code != exit.OK || !c.plain && (code != exit.Usage || !strings.Contains(errOut, "--out att-002-file-a.txt")) {
				t.Errorf("to a terminal: exit %d, %s", code, errOut)
			}
		})
	}
	if code, errOut := fetch(io.Discard, "--json"); code != exit.Usage || !strings.Contains(errOut, "--json") {
		t.Errorf("with --json: exit %d, %s", code, errOut)
	}
	if _, err := os.Lstat("-"); err == nil {
		t.Error("a file of the name - was written")
	}
}
