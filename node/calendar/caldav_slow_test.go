//go:build slow

package calendar_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/calendar"
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

// TestCancelledAtCalDAV: an agreed event appears on a real server, and a cancelled one disappears, even if it was
// cancelled while no book ran.
func TestCancelledAtCalDAV(t *testing.T) {
	url := radicale(t)
	c, err := calendar.NewCalDAV(url, "sarah", "hunter2", http.DefaultClient.Do)
	if err != nil {
		t.Fatal(err)
	}
	db := database(t)
	recs := db.Records()
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
		go func() { defer close(done); runBook(ctx, db, book) }()
		defer func() { stop(); <-done }()
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
