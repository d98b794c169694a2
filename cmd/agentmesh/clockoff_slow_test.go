//go:build slow

package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestClockOffIsTold: a command whose message is refused because of a wrong clock prints how wrong the clock is
// (AM-84), and the message leaves again, with another signature. The peer answers as if its clock were an hour ahead.
func TestClockOffIsTold(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	posts := make(chan []byte, 10)
	peer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		posts <- body
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(wire.ErrTimeWindow.Status)
		_, _ = w.Write(wire.ErrTimeWindow.AppendJSON(nil))
	})
	front := httptest.NewUnstartedServer(nil)
	defer front.Close()
	sarah, err := startServe(filepath.Join(t.TempDir(), "sarah"), []string{"--set=card.endpoint=http://" + front.Listener.Addr().String() + "/agentmesh"}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sarah.Process.Signal(os.Interrupt); sarah.Wait() })
	behind, err := url.Parse(sarah.info.URL)
	if err != nil {
		t.Fatal(err)
	}
	through := httputil.NewSingleHostReverseProxy(behind)
	front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			peer(w, r)
			return
		}
		through.ServeHTTP(w, r)
	})
	front.Start()
	dir := filepath.Join(t.TempDir(), "chris")
	chris, err := startServe(dir, []string{"--roles=node", "--directory=" + sarah.info.Directory}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { chris.Process.Signal(os.Interrupt); chris.Wait() })
	var out bytes.Buffer
	code := run(t.Context(), []string{"--data", dir, "send", string(sarah.info.AgentID), "hello", "--wait"}, strings.NewReader(""), &out, &out)
	if want := regexp.MustCompile("this machine's clock is about (1h0m|59m).*s behind the peer's"); code == exit.OK || !want.MatchString(out.String()) {
		t.Errorf("send = %d:\n%s", code, out.String())
	}
	first := <-posts
	select {
	case again := <-posts:
		if !bytes.Contains(again, []byte("resend_of")) || bytes.Contains(first, []byte("resend_of")) {
			t.Errorf("the second attempt has the old signature: %s", again)
		}
	case <-time.After(20 * time.Second):
		t.Error("the message is not sent again")
	}
	out.Reset()
	if run(t.Context(), []string{"--data", dir, "status"}, strings.NewReader(""), &out, &out); !strings.Contains(out.String(), "behind the peer's") {
		t.Errorf("status does not show the last error:\n%s", out.String())
	}
}
