//go:build slow

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestCalDAVServer: a node shows the events of a server that also sends an object cut in half and one for the
// collection itself, all with weak ETags, and names what it cannot read. If the server moves, the error names the target.
func TestCalDAVServer(t *testing.T) {
	t.Parallel()
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 3)
	object := func(name, data string) string {
		return fmt.Sprintf(`<D:response><D:href>/c/%s</D:href><D:propstat><D:prop><D:getetag>W/"1"</D:getetag><C:calendar-data>%s</C:calendar-data></D:prop>`+
			`<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>`, name, data)
	}
	event := func(hour int) string {
		return fmt.Sprintf("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:%d\r\nDTSTART:%sT%02d0000Z\r\nDURATION:PT1H\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
			hour, day.Format("20060102"), hour)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/c/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusMultiStatus)
		fmt.Fprint(w, `<D:multistatus xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">`, object("8.ics", event(8)), object("cut.ics", event(9)[:90]), object("12.ics", event(12)),
			`<D:response><D:href>/c/</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response></D:multistatus>`)
	})
	mux.HandleFunc("/old/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/c/")
		w.WriteHeader(http.StatusMovedPermanently)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	call := owner.Call[daemon.CalendarView]{Method: "GET", Path: "calendar"}

	dir, other := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "other")
	mustRun(t, dir, "init", "--name=Sarah")
	mustRun(t, other, "init", "--name=Sarah")
	mustServe(t, dir, "--set=owner.zone=UTC", "--set=calendar.url="+server.URL+"/c/")
	view, err := daemon.Fetch(t.Context(), ownerClient(t, dir), call)
	if err != nil {
		t.Fatal(err)
	}
	if len(view.Busy) != 2 || view.Busy[0].Start.Hour() != 8 || view.Busy[1].Start.Hour() != 12 {
		t.Errorf("busy = %v", view.Busy)
	}
	if p := view.Problems; len(p) != 2 || !strings.HasSuffix(p[0].Source, "/c/cut.ics") || !p[0].Unread || !strings.HasSuffix(p[1].Source, "/c/") {
		t.Errorf("problems = %+v", p)
	}

	mustServe(t, other, "--set=owner.zone=UTC", "--set=calendar.url="+server.URL+"/old/")
	if _, err := daemon.Fetch(t.Context(), ownerClient(t, other), call); err == nil || !strings.Contains(err.Error(), server.URL+"/c/") {
		t.Errorf("moved: %v", err)
	}
}
