package calendar_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/store"
)

// radicale starts the CalDAV server Radicale with an empty calendar and returns the calendar's URL.
func radicale(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("radicale")
	if err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatal("radicale is not installed (AGENTMESH_TOOLS=required)")
		}
		t.Skip("radicale is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	text := fmt.Sprintf("[server]\nhosts = %s\n[auth]\ntype = htpasswd\nhtpasswd_filename = %s\nhtpasswd_encryption = plain\n"+
		"[storage]\nfilesystem_folder = %s\n[logging]\nlevel = warning\n", address, filepath.Join(dir, "users"), filepath.Join(dir, "data"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "users"), []byte("sarah:hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, program, "--config", config)
	var log bytes.Buffer
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = server.Wait() })
	url := "http://" + address + "/sarah/main/"
	request, err := http.NewRequestWithContext(t.Context(), "MKCALENDAR", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("sarah", "hunter2")
	for deadline := time.Now().Add(30 * time.Second); ; {
		resp, err := http.DefaultClient.Do(request)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusCreated {
				t.Fatalf("MKCALENDAR: %s", resp.Status)
			}
			return url
		}
		if time.Now().After(deadline) {
			t.Fatalf("radicale does not answer: %v\n%s", err, &log)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// TestCalDAV writes, reads and removes an event on a real server, and reads a series with an exception.
func TestCalDAV(t *testing.T) {
	url := radicale(t)
	c, err := calendar.NewCalDAV(url, "sarah", "hunter2", http.DefaultClient.Do)
	if err != nil {
		t.Fatal(err)
	}
	window := calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}
	busy := func() int {
		t.Helper()
		list, problems, err := c.Busy(t.Context(), window, zone(t))
		if err != nil || len(problems) != 0 {
			t.Fatalf("Busy = %v, %v, %v", list, problems, err)
		}
		return len(list)
	}
	if n := busy(); n != 0 {
		t.Fatalf("an empty calendar has %d busy times", n)
	}
	e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", With: "Chris", Start: at(t, 12, 10, 0), Duration: time.Hour, Made: now}
	for range 2 { // a repeat changes nothing
		if err := c.Put(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	// The zone is described, as clients send it: a server without a zone database knows no zone names.
	const berlin = "BEGIN:VTIMEZONE\r\nTZID:Europe/Berlin\r\nBEGIN:STANDARD\r\nDTSTART:19701025T030000\r\nTZOFFSETFROM:+0200\r\nTZOFFSETTO:+0100\r\n" +
		"END:STANDARD\r\nEND:VTIMEZONE\r\n"
	series := "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n" + berlin + "BEGIN:VEVENT\r\nUID:series\r\nDTSTAMP:20260101T000000Z\r\nDTSTART;TZID=Europe/Berlin:20260313T090000\r\n" +
		"DURATION:PT1H\r\nRRULE:FREQ=DAILY;COUNT=3\r\nEXDATE;TZID=Europe/Berlin:20260314T090000\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"series.ics", strings.NewReader(series))
	if err != nil {
		t.Fatal(err)
	}
	put.SetBasicAuth("sarah", "hunter2")
	put.Header.Set("Content-Type", "text/calendar")
	resp, err := http.DefaultClient.Do(put)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("PUT of the series: %s", resp.Status)
	}
	if n := busy(); n != 3 {
		t.Errorf("%d busy times, want the event and two of the series", n)
	}
	for range 2 {
		if err := c.Remove(t.Context(), e.UID); err != nil {
			t.Fatal(err)
		}
	}
	if n := busy(); n != 2 {
		t.Errorf("%d busy times after the event was removed, want 2", n)
	}
	wrong, err := calendar.NewCalDAV(url, "sarah", "wrong", http.DefaultClient.Do)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := wrong.Busy(t.Context(), window, zone(t)); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Errorf("Busy with a wrong password = %v, want an error without it", err)
	}
}

// TestCalDAVLies: an answer that is nonsense or endless is an error, in bounded time and memory.
func TestCalDAVLies(t *testing.T) {
	window := calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}
	multistatus := func(text string) string {
		return `<?xml version="1.0"?><multistatus xmlns="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav"><response><href>/c/1.ics</href><propstat><prop>` +
			`<C:calendar-data>` + text + `</C:calendar-data></prop><status>HTTP/1.1 200 OK</status></propstat></response></multistatus>`
	}
	for name, answer := range map[string]func(http.ResponseWriter){
		"html":        func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		"no calendar": func(w http.ResponseWriter) { w.WriteHeader(http.StatusMultiStatus); fmt.Fprint(w, multistatus("x")) },
		"malformed line": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusMultiStatus)
			fmt.Fprint(w, multistatus("BEGIN:VCALENDAR&#10;X;Y=\"a\"b:&#10;"))
		},
		"without end": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusMultiStatus)
			line := []byte(strings.Repeat("<x>", 10_000))
			for {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/xml")
				answer(w)
			}))
			defer server.Close()
			c, err := calendar.NewCalDAV(server.URL+"/c", "", "", http.DefaultClient.Do)
			if err != nil {
				t.Fatal(err)
			}
			if list, _, err := c.Busy(t.Context(), window, time.UTC); err == nil {
				t.Errorf("Busy = %v, want an error", list)
			}
		})
	}
}

func TestNewCalDAVRefuses(t *testing.T) {
	for _, address := range []string{"", "calendar", "ftp://x.example/c", "http://calendar.example/c", "https://user:secret@calendar.example/c"} {
		if _, err := calendar.NewCalDAV(address, "", "", http.DefaultClient.Do); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("NewCalDAV(%q) = %v", address, err)
		}
	}
}

// TestCancelledAtCalDAV: an agreed event appears on a real server, and a cancelled one disappears, even if it was
// cancelled while no book ran.
func TestCancelledAtCalDAV(t *testing.T) {
	url := radicale(t)
	c, err := calendar.NewCalDAV(url, "sarah", "hunter2", http.DefaultClient.Do)
	if err != nil {
		t.Fatal(err)
	}
	recs := records(t)
	book := calendar.NewBook(calendar.BookConfig{Records: recs, Writer: c})
	begin := time.Now().Truncate(time.Hour)
	e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: begin.Add(48 * time.Hour), Duration: time.Hour, Made: begin}
	save := func(changes ...store.Change) {
		t.Helper()
		if err := recs.Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(changes ...store.Change) {
		t.Helper()
		save(changes...)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); book.Run(ctx) }()
		defer func() { stop(); <-done }()
		book.OnCommit(changes)
		want := 0
		if events, err := book.Events(t.Context(), time.Now()); err == nil {
			want = len(events)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			busy, _, err := c.Busy(t.Context(), calendar.Interval{Start: begin, End: begin.AddDate(0, 0, 7)}, time.UTC)
			if err == nil && len(busy) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the server has %v, %v, want %d events", busy, err, want)
			}
		}
	}
	cancel := func() []store.Change {
		t.Helper()
		_, changes, err := book.Cancel(t.Context(), e.UID, time.Now())
		if err != nil || len(changes) != 1 {
			t.Fatalf("Cancel = %v, %v", changes, err)
		}
		return changes
	}
	apply(book.Add(e))
	apply(cancel()...)
	apply(book.Add(e))
	save(cancel()...)
	apply()
}

// TestCalDAVSendsNowhereElse: a calendar server cannot redirect the node, with the owner's password, to an address
// inside the owner's network.
func TestCalDAVSendsNowhereElse(t *testing.T) {
	var hits atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer inside.Close()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	defer h.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusMultiStatus} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", inside.URL+"/latest/meta-data")
			w.Header().Set("Content-Type", "text/xml")
			w.WriteHeader(status)
			fmt.Fprintf(w, `<?xml version="1.0"?><multistatus xmlns="DAV:"><response><href>%s/secret.ics</href><status>HTTP/1.1 302 Found</status></response></multistatus>`, inside.URL)
		}))
		c, err := calendar.NewCalDAV(server.URL+"/c", "sarah", "hunter2", func(r *http.Request) (*http.Response, error) {
			return h.Do(r.Context(), client.Owner, r)
		})
		if err != nil {
			t.Fatal(err)
		}
		e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: now, Duration: time.Hour, Made: now}
		_, _, readErr := c.Busy(t.Context(), calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}, time.UTC)
		putErr := c.Put(t.Context(), e)
		if readErr == nil || status != http.StatusMultiStatus && putErr == nil {
			t.Errorf("%d: read %v, put %v, want errors", status, readErr, putErr)
		}
		server.Close()
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("the other server was called %d times", n)
	}
}

// TestRemoveReportsFailure checks that an error counts as success only if its status is 404, whatever its text says.
func TestRemoveReportsFailure(t *testing.T) {
	for _, tt := range []struct {
		status  int
		removed bool
	}{{http.StatusNoContent, true}, {http.StatusNotFound, true}, {http.StatusInternalServerError, false}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(tt.status)
			if tt.status >= 300 {
				io.WriteString(w, "the disk failed with code 404")
			}
		}))
		defer srv.Close()
		c, err := calendar.NewCalDAV(srv.URL+"/", "sarah", "hunter2", http.DefaultClient.Do)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Remove(t.Context(), "uid"); (err == nil) != tt.removed {
			t.Errorf("Remove() on status %d = %v", tt.status, err)
		}
	}
}
