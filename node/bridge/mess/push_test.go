package mess

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestNotifications: executors are notified in the form of their channel. One whose address never answers delays
// neither the others nor the owner.
func TestNotifications(t *testing.T) {
	var tarpit atomic.Int32
	got := make(chan string, 10)
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/tarpit" {
			tarpit.Add(1)
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		}
		got <- r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
	}))
	defer srv.Close()
	defer close(release)
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.Notify = true
		c.HTTP = client.NewHTTP(client.HTTPConfig{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	})
	register := func(id, capability string, channels ...registry.Notification) {
		t.Helper()
		reg := registry.Registration{ID: id, Capabilities: []thread.Need{{ID: capability}}, Notifications: channels}
		if _, err := home.Executors.Register(t.Context(), reg, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	register("slow", "anything", registry.Notification{Type: "webhook", URL: srv.URL + "/tarpit"}, registry.Notification{Type: "webhook", URL: srv.URL + "/tarpit"})
	register("bob", "ladder", registry.Notification{Type: "ntfy", URL: srv.URL + "/ntfy"}, registry.Notification{Type: "slack", URL: srv.URL + "/slack"},
		registry.Notification{Type: "webhook", URL: srv.URL + "/hook"}, registry.Notification{Type: "pushover", URL: srv.URL + "/never"})
	for range 5 { // the first one stays in flight for the whole test
		home.task(home.request("claude", "{intent: wait, requires: [anything]}"), "work/0")
	}
	ref := home.request("claude", "{intent: 'change the bulb', requires: [ladder], priority: urgent}")
	home.task(ref, "work/0")
	for _, want := range []string{
		"/ntfy text/plain [urgent] change the bulb (" + ref + ")",
		`/slack application/json {"text":"[urgent] change the bulb (` + ref + `)"}`,
		`/hook application/json {"ref":"` + ref + `","intent":"change the bulb","priority":"urgent"}`,
	} {
		if text := <-got; text != want {
			t.Errorf("sent %s, want %s", text, want)
		}
	}
	if n := tarpit.Load(); n != 1 {
		t.Errorf("the address that never answers was called %d times at once", n)
	}
	if len(got) > 0 {
		t.Errorf("and %s", <-got)
	}
}

// TestRefusedNotification: a notification that the server of the channel refuses is a failure.
func TestRefusedNotification(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	p := pushes{http: client.NewHTTP(client.HTTPConfig{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})}
	for status, fails := range map[int]bool{200: false, 204: false, 301: true, 403: true, 404: true, 500: true} {
		if err := p.post(t.Context(), srv.URL+"/"+strconv.Itoa(status), "text/plain", nil); (err != nil) != fails {
			t.Errorf("HTTP %d: %v", status, err)
		}
	}
}
