package thread

import (
	"testing"
	"time"
)

// TestSniff: what a browser would run is never recorded with its own type, also behind white space.
func TestSniff(t *testing.T) {
	for data, want := range map[string]string{
		"<html>": "application/octet-stream", "\n<html>": "application/octet-stream", " \t\r\n\f<!DOCTYPE HTML>": "application/octet-stream",
		"\n<?xml version='1.0'?>": "application/octet-stream", "hello": "text/plain", "GIF89a": "image/gif",
	} {
		if _, got := Sniff([]byte(data)); got != want {
			t.Errorf("%q: %s, want %s", data, got, want)
		}
	}
}

// TestAdoptedCanBeReleased: the owner can let in a thread from a file that waits without a holder (MESS-48).
func TestAdoptedCanBeReleased(t *testing.T) {
	for _, status := range []string{"waiting", "held"} {
		f, err := ParseFiles([]byte("ref: 2026-02-01-001\nrequestor: alice\nexecutor: null\nstatus: " + status +
			"\ncreated: 2026-02-01T10:00:00Z\nupdated: 2026-02-01T10:00:00Z\nintent: look\npriority: normal\n"))
		if err != nil {
			t.Fatal(err)
		}
		th, _, err := f.Adopt()
		if err != nil {
			t.Fatal(err)
		}
		if !th.Unpark(time.Now()) || th.Status != Received {
			t.Errorf("%s: the thread is %s, want it received", status, th.Status)
		}
	}
}
