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
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestCalDAVLies: an answer that is nonsense or endless is an error, in bounded time and memory.
func TestCalDAVLies(t *testing.T) {
	window := calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}
	multistatus := func(text string) string {
		return `<?xml version="1.0"?><multistatus xmlns="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav"><response><href>/c/1.ics</href><propstat><prop>` +
			`<C:calendar-data>` + text + `</C:calendar-data></prop><status>HTTP/1.1 200 OK</status></propstat></response></multistatus>`
	}
	for name, answer := range map[string]func(http.ResponseWriter){
		"html": func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		"cut off": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusMultiStatus)
			fmt.Fprint(w, multistatus("x")[:100])
		},
		"no list":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusMultiStatus); fmt.Fprint(w, "<x/>") },
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
			list, problems, err := c.Busy(t.Context(), window, time.UTC)
			if isPartial := len(problems) == 1 && problems[0].Unread; err == nil && !isPartial {
				t.Errorf("Busy = %v, %v, want an error or an unread object", list, problems)
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
		_, problems, readErr := c.Busy(t.Context(), calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}, time.UTC)
		putErr := c.Put(t.Context(), e)
		isPartial := len(problems) == 1 && problems[0].Unread
		if readErr == nil && !isPartial || status != http.StatusMultiStatus && putErr == nil {
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

// davServer answers REPORT with a list of responses, and everything else with a weak ETag.
func davServer(t *testing.T, responses ...string) (c *calendar.CalDAV, puts *atomic.Int32) {
	t.Helper()
	puts = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `W/"1"`)
		if r.Method != "REPORT" {
			puts.Add(1)
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.Header().Set("Content-Type", "application/xml; charset=utf-8")
		w.WriteHeader(http.StatusMultiStatus)
		fmt.Fprintf(w, `<?xml version="1.0"?><D:multistatus xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">%s</D:multistatus>`, strings.Join(responses, ""))
	}))
	t.Cleanup(server.Close)
	c, err := calendar.NewCalDAV(server.URL+"/c", "sarah", "hunter2", http.DefaultClient.Do)
	if err != nil {
		t.Fatal(err)
	}
	return c, puts
}

// davObject is the response for the object /c/N.ics, which is busy from N o'clock on 10 March for an hour.
func davObject(n int, change func(text string) string) string {
	text := fmt.Sprintf("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\nBEGIN:VEVENT\r\nUID:%d\r\nDTSTAMP:20260101T000000Z\r\n"+
		"DTSTART:20260310T%02d0000Z\r\nDURATION:PT1H\r\nSUMMARY:x\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n", n, n)
	return fmt.Sprintf(`<D:response><D:href>/c/%d.ics</D:href><D:propstat><D:prop><D:getetag>W/"1"</D:getetag><D:getlastmodified>long ago</D:getlastmodified>`+
		`<C:calendar-data>%s</C:calendar-data></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>`, n, change(text))
}

// TestOddObjects: one odd object of a server's answer hides none of the others, and its problem names it.
func TestOddObjects(t *testing.T) {
	same := func(text string) string { return text }
	for _, tt := range []struct {
		name, odd string
		busy      int
		problem   string // the end of its Source; empty: none
		isPartial bool
	}{
		{"weak ETags", "", 3, "", false},
		{"cut off", davObject(4, func(text string) string { return text[:90] }), 3, "/c/4.ics", true},
		{"cut off after its first event", davObject(4, func(text string) string {
			return strings.Replace(text, "END:VCALENDAR\r\n", "BEGIN:VEVENT\r\nUID:4\r\nRECURR", 1)
		}), 4, "/c/4.ics", true},
		{"the collection", `<D:response><D:href>/c/</D:href><D:propstat><D:prop><C:calendar-data/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat><D:status/></D:response>`, 3, "/c/", false},
		{"the collection, missing", `<D:response><D:href>/c/</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response>`, 3, "/c/", false},
		{"more than the server sends", `<D:response><D:href>/c/</D:href><D:status>HTTP/1.1 507 Insufficient Storage</D:status></D:response>`, 3, "/c/", true},
		{"an empty status", `<D:response><D:href>/c/4.ics</D:href><D:status/></D:response>`, 3, "/c/4.ics", true},
		{"an empty object", davObject(4, func(string) string { return "" }), 3, "/c/4.ics", true},
		{"a web page", davObject(4, func(string) string { return "&lt;html>" }), 3, "/c/4.ics", true},
		{"no address", `<D:response><D:status>HTTP/1.1 500 x</D:status></D:response>`, 3, "/c/", true},
		{"an odd address", `<D:response><D:href>%zz</D:href><D:status>HTTP/1.1 500 x</D:status></D:response>`, 3, "%zz", true},
		{"a control character", davObject(4, func(text string) string { return strings.Replace(text, "SUMMARY:x", "SUMMARY:x\vy", 1) }), 4, "", false},
		{"an unknown property", strings.Replace(davObject(4, same), "<D:prop>", `<D:prop><X xmlns="urn:x">y</X><D:getcontentlength>many</D:getcontentlength>`, 1), 4, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := davServer(t, davObject(1, same), davObject(2, same), tt.odd, davObject(3, same))
			busy, problems, err := c.Busy(t.Context(), calendar.Interval{Start: now.AddDate(0, 0, -1), End: now.AddDate(0, 0, 14)}, time.UTC)
			if err != nil || len(busy) != tt.busy {
				t.Errorf("busy = %v, %v, want %d", busy, err, tt.busy)
			}
			if tt.problem == "" {
				if len(problems) > 0 {
					t.Errorf("problems = %v", problems)
				}
			} else if len(problems) != 1 || !strings.HasSuffix(problems[0].Source, tt.problem) || problems[0].Unread != tt.isPartial {
				t.Errorf("problems = %+v, want one of %s", problems, tt.problem)
			}
		})
	}
}

// TestWeakETag: an event is written once, whatever the server says about its version, and is not reported as failed.
func TestWeakETag(t *testing.T) {
	c, puts := davServer(t)
	e := calendar.Event{UID: calendar.UID("am_x", "c"), Title: "Coffee", Start: now, Duration: time.Hour, Made: now}
	if err := c.Put(t.Context(), e); err != nil || puts.Load() != 1 {
		t.Errorf("Put = %v after %d calls", err, puts.Load())
	}
}

// TestNotACalendar: the error for a wrong address says what is there.
func TestNotACalendar(t *testing.T) {
	moved := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/dav/sarah/")
			w.WriteHeader(status)
		}
	}
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		put    bool
	}{
		{"moved", moved(301), true},
		{"moved for a time", moved(307), true},
		{"a web page", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, "<html>Welcome</html>")
		}, false},
		{"another answer", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, false},
		{"no access", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, true},
	} {
		server := httptest.NewServer(tt.answer)
		c, err := calendar.NewCalDAV(server.URL+"/c", "", "", http.DefaultTransport.RoundTrip)
		if err != nil {
			t.Fatal(err)
		}
		refuses := func(step string, err error) bool {
			return err != nil && goldentest.Says(t, step, strings.ReplaceAll(err.Error(), server.URL, "URL"))
		}
		if _, _, err := c.Busy(t.Context(), calendar.Interval{Start: now, End: now.AddDate(0, 0, 14)}, time.UTC); !refuses(tt.name+", busy", err) {
			t.Errorf("%s: Busy = %v", tt.name, err)
		}
		if err := c.Put(t.Context(), calendar.Event{UID: "u", Start: now, Made: now}); tt.put && !refuses(tt.name+", put", err) {
			t.Errorf("%s: Put = %v", tt.name, err)
		}
		if err := c.Remove(t.Context(), "u"); tt.put && !refuses(tt.name+", remove", err) {
			t.Errorf("%s: Remove = %v", tt.name, err)
		}
		server.Close()
	}
}
