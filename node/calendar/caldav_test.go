package calendar_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
)

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
