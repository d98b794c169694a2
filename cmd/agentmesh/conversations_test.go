package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestConversationPages: readConversation reads all pages of a conversation with the peer that the first page names, and
// fullConversation joins them for --json.
func TestConversationPages(t *testing.T) {
	pages := map[string]string{
		"/owner/conversations/be?after=0":                `{"conversation_id":"conv_be","peer":"am_p","transcript":[{"n":1},{"n":2}],"entries":3,"next":2}`,
		"/owner/conversations/conv_be?after=2&peer=am_p": `{"conversation_id":"conv_be","peer":"am_p","transcript":[{"n":3}],"entries":3}`,
	}
	o := &daemon.Client{Client: owner.Client{HTTP: &http.Client{Transport: client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.RequestURI()]
		if !ok {
			t.Errorf("asked for %s", r.URL)
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, page)
	}))}}}
	all := fullConversation{entries: []json.RawMessage{}}
	lines := 0
	err := readConversation(t.Context(), o, "be", "", func(page owner.Transcript, raw json.RawMessage) error {
		lines += len(page.Transcript)
		return all.add(raw)
	})
	if err != nil || lines != 3 {
		t.Fatalf("%d entries, %v, want 3", lines, err)
	}
	got, err := json.Marshal(all)
	want := `{"conversation_id":"conv_be","entries":3,"peer":"am_p","transcript":[{"n":1},{"n":2},{"n":3}]}`
	if err != nil || string(got) != want {
		t.Errorf("joined: %s, %v, want %s", got, err, want)
	}
}

// TestPages: fetchPages joins all pages of a list.
func TestPages(t *testing.T) {
	pages := map[string]string{
		"/owner/tokens":         `{"tokens":[{"id":"a"},{"id":"b"}],"next":"b"}`,
		"/owner/tokens?after=b": `{"tokens":[{"id":"c"}],"next":"c"}`,
		"/owner/tokens?after=c": `{"tokens":[]}`,
	}
	o := &daemon.Client{Client: owner.Client{HTTP: &http.Client{Transport: client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.RequestURI()]
		if !ok {
			t.Errorf("asked for %s", r.URL)
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, page)
	}))}}}
	all, err := fetchPages[json.RawMessage](t.Context(), o, "tokens", url.Values{}, "after", noLimit)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(all)
	if want := `[{"id":"a"},{"id":"b"},{"id":"c"}]`; err != nil || string(got) != want {
		t.Errorf("fetchPages() = %s, %v, want %s", got, err, want)
	}
}
