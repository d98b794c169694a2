package thread

import (
	"strings"
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
		th, _ := f.Adopt()
		if !th.Unpark(time.Now()) || th.Status != Received {
			t.Errorf("%s: the thread is %s, want it received", status, th.Status)
		}
	}
}

// TestThreadFilesCanBeRead: our own files are within the limits of our reader, also with very many short messages
// (MESS-61).
func TestThreadFilesCanBeRead(t *testing.T) {
	th := &Thread{Ref: "2026-02-01-001", Requester: "alice", Status: Received, Intent: "look", Priority: "normal", Created: time.Now(), Updated: time.Now()}
	var messages []Message
	for n := range MaxMessages {
		b, err := Parse([]byte("- response: {re: x, content: [ok, 'a, b, c']}"))
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, Message{Serial: n + 1, From: "bob", At: th.Created, Mess: b.Tree()})
	}
	th.History = []Event{{Action: "created", At: th.Created, By: "alice"}}
	for range MaxEvents {
		th.History = append(th.History, Event{Action: "in_progress", At: th.Created, By: "bob", Note: "a\nb"})
	}
	var texts [][]byte
	for _, f := range ThreadFiles(th, messages) {
		texts = append(texts, []byte(f.Content))
	}
	parsed, err := ParseFiles(texts...)
	if err != nil {
		t.Fatalf("%d files: %v", len(texts), err)
	}
	if len(parsed.Documents) != 2*MaxMessages || len(texts) > 10 {
		t.Errorf("%d documents in %d files, want %d", len(parsed.Documents), len(texts), 2*MaxMessages)
	}
	if h := parsed.Thread.History; len(h) < 500 || h[0].Action != "created" {
		t.Errorf("%d events were read, beginning with %s", len(h), h[0].Action)
	}
}

// TestLargeBlocksCanBeRead: the file of any block that we accept as JSON can be read back: a long table, a long log,
// many short rows, and blocks with as many values, or nested as deep, as the limits allow (MESS-61).
func TestLargeBlocksCanBeRead(t *testing.T) {
	content := func(list string) string { return `[{"response": {"re": "x", "content": [` + list + `]}}]` }
	for name, text := range map[string]string{
		"table":  content(`"` + strings.Repeat("1,2,[3],{4} - !x &y *z ?,", 8000) + `"`),
		"log":    content(`"` + strings.Repeat(`a line of a log\n`, 50_000) + `"`),
		"rows":   content(strings.Repeat(`"a, b, c-d, e, f, g, h, i, j, k", `, 5000) + `"end"`),
		"values": content(strings.Repeat(`1, `, Limits.Nodes-7) + `1`),
		"deep":   content(strings.Repeat(`[`, Limits.Depth-4) + strings.Repeat(`]`, Limits.Depth-4)),
	} {
		t.Run(name, func(t *testing.T) {
			v, err := ParseJSON([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			th := &Thread{Ref: "2026-02-01-001", Requester: "alice", Status: Received, Intent: "look", Priority: "normal", Created: time.Now(), Updated: time.Now()}
			for range MaxMessages + 200 {
				th.History = append(th.History, Event{Action: "created", At: th.Created, By: "alice"})
			}
			var texts [][]byte
			for _, f := range ThreadFiles(th, []Message{{Serial: 1, From: "alice", At: th.Created, Channel: "mcp", Re: []string{"x"}, Mess: v}}) {
				texts = append(texts, []byte(f.Content))
			}
			parsed, err := ParseFiles(texts...)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := parsed.Documents[0].Get("MESS"); string(got.JSON()) != string(v.JSON()) {
				t.Errorf("the block is another one: %.200s", got.JSON())
			}
		})
	}
}
