package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
)

func serverURL(t *testing.T, h http.Handler) *url.URL {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestLink(t *testing.T) {
	var mu sync.Mutex
	conns := make(map[string]bool)
	base := serverURL(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		mu.Unlock()
		switch r.URL.Path {
		case "/chunked":
			for i := range 3 {
				fmt.Fprintf(w, "part %d.", i)
				w.(http.Flusher).Flush()
			}
		case "/close":
			w.Header().Set("Connection", "close")
			fmt.Fprint(w, "bye")
		case "/not-modified":
			w.WriteHeader(http.StatusNotModified)
		default:
			fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, r.Header.Get("X-Test"))
		}
	}))
	l := httpClient{base: base}
	defer l.close()
	for _, tc := range []struct {
		target string
		status int
		want   string
	}{
		{"/a?b=c", 200, "GET /a?b=c yes"},
		{"/chunked", 200, "part 0.part 1.part 2."},
		{"/not-modified", 304, ""},
		{"/again", 200, "GET /again yes"},
		{"/close", 200, "bye"},
		{"/after", 200, "GET /after yes"},
	} {
		a, err := l.exchange(t.Context(), request("GET", base, tc.target, nil, "X-Test", "yes"))
		if err != nil || a.Status != tc.status || string(a.Body) != tc.want {
			t.Errorf("GET %s = %d %q, %v; want %d %q", tc.target, a.Status, a.Body, err, tc.status, tc.want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(conns) != 2 {
		t.Errorf("%d connections, want 2: one until the server closed it, one after", len(conns))
	}
}

// TestControlAnswersTheSame: a control returns the bytes and headers of the server that it is compared with.
func TestControlAnswersTheSame(t *testing.T) {
	like := serverURL(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Etag", `"abc"`)
		h.Add("Vary", "Accept")
		h.Add("Vary", "Origin")
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"ok":true}`))
	}))
	get := func(base *url.URL) answer {
		l := httpClient{base: base}
		defer l.close()
		a, err := l.exchange(t.Context(), request("GET", base, "/x", nil))
		if err != nil {
			t.Fatal(err)
		}
		a.Body = bytes.Clone(a.Body)
		a.Header.Del("Date")
		return a
	}
	want := get(like)
	h, stop, err := newScript(want).handler()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if diff := cmp.Diff(want, get(serverURL(t, h))); diff != "" {
		t.Errorf("control answers otherwise (-server +control):\n%s", diff)
	}
}

// TestControlCommits: a control in its own process exits when its parent closes the pipe, and the bodies are stored.
func TestControlCommits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "control.db")
	srv, err := startControl(t.Context(), script{Status: http.StatusCreated, Body: []byte("kept"), Commit: file})
	if err != nil {
		t.Fatal(err)
	}
	const senders, posts = 8, 5
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			l := httpClient{base: srv.url()}
			defer l.close()
			for i := range posts {
				key := fmt.Sprintf("%d/%d", s, i)
				a, err := l.exchange(t.Context(), request("POST", srv.url(), "/v1/agents", []byte("body "+key), keyHeader, key))
				if err != nil || a.Status != http.StatusCreated || string(a.Body) != "kept" {
					t.Errorf("POST = %d %q, %v", a.Status, a.Body, err)
				}
			}
		})
	}
	all.Wait()
	if srv.PID == os.Getpid() {
		t.Error("the control runs in this process")
	}
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketRows).ForEach(func(k, v []byte) error {
			n++
			if string(v) != "body "+string(k) {
				t.Errorf("row %s = %q", k, v)
			}
			return nil
		})
	})
	if err != nil || n != senders*posts {
		t.Errorf("%d rows, %v; want %d", n, err, senders*posts)
	}
}

// TestGroupWriter: a group writer stores every row, and reports a failed commit to every sender.
func TestGroupWriter(t *testing.T) {
	dir := t.TempDir()
	log, err := newLogWriter(filepath.Join(dir, "raw.log"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := log.write(put{bucketRows, []byte("key"), []byte("value")}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := log.stop(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "raw.log")); err != nil || info.Size() != 20*int64(len("keyvalue")) {
		t.Errorf("log has %v bytes, %v", info.Size(), err)
	}
	broken := newGroupWriter(func([]queuedWrite) error { return context.DeadlineExceeded }, func() error { return nil })
	defer broken.stop()
	if err := broken.write(); err != context.DeadlineExceeded {
		t.Errorf("write to a broken log = %v", err)
	}
}

func TestCorpus(t *testing.T) {
	a, b := newCorpus("x"), newCorpus("x")
	if !bytes.Equal(a.card(7), b.card(7)) {
		t.Error("the same number is not the same card")
	}
	if bytes.Equal(a.card(7), a.card(8)) {
		t.Error("two numbers are the same card")
	}
	if n := len(a.card(7)); n < 700 || n > 1200 {
		t.Errorf("a card has %d bytes", n)
	}
}
