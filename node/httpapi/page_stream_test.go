package httpapi

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// eventLines opens the event stream of a page. next returns the data of the next event, "end" after the stream ended.
func (b *browser) eventLines() (next func() string, stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+PagePath+"/events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		b.t.Fatalf("events: %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() string {
			for lines.Scan() {
				if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					return data
				}
			}
			return "end"
		}, func() {
			cancel()
			resp.Body.Close()
		}
}

func TestStreamTellsWhatChanged(t *testing.T) {
	o, token, _ := startPages(t, shortTempDir(t))
	tell := make(chan string)
	o.Pages().Follow(func(ctx context.Context, changed func(string)) {
		for {
			select {
			case topic := <-tell:
				changed(topic)
			case <-ctx.Done():
				return
			}
		}
	})
	b := newBrowser(t, o)
	b.signIn(token)
	next, stop := b.eventLines()
	defer stop()
	if got := next(); got != "" { // ready
		t.Fatalf("first line %q", got)
	}
	begun := time.Now()
	for range 10_000 { // changes are merged, so a slow page costs nothing
		tell <- "inbox"
		tell <- "approvals"
	}
	tell <- "outbox" // may be sent together with the others
	seen, topics := 0, map[string]bool{}
	for ; !topics["outbox"]; seen++ {
		changed := next()
		if changed == "end" {
			t.Fatal("the stream ended")
		}
		for topic := range strings.FieldsSeq(changed) {
			topics[topic] = true
		}
	}
	if len(topics) != 3 || !topics["inbox"] || !topics["approvals"] {
		t.Errorf("changed: %v", topics)
	}
	if took := time.Since(begun); seen > 2+int(took/streamPause) {
		t.Errorf("twenty thousand changes became %d events in %v", seen, took)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	o, token, _ := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	b.signIn(token)
	for range maxStreamsOpen {
		_, stop := b.eventLines()
		defer stop()
	}
	if resp, _ := b.get(PagePath + "/events"); resp.StatusCode != 503 {
		t.Errorf("one stream too many: %d", resp.StatusCode)
	}
}

func TestStreamsEndWithTheListener(t *testing.T) {
	dir := shortTempDir(t)
	o := NewOwner(OwnerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	addTestPages(o)
	stop := serveOwner(t, o)
	token, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, o)
	b.signIn(strings.TrimSpace(string(token)))
	next, hangUp := b.eventLines()
	defer hangUp()
	next()
	stop()
	if got := next(); got != "end" {
		t.Errorf("the stream goes on: %q", got)
	}
}
