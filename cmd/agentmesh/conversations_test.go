package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestConversationPages: readConversation joins all pages of a conversation with the peer that the first page names.
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
	got, err := readConversation(t.Context(), o, "be", "")
	want := owner.Transcript{Conversation: owner.Conversation{ID: "conv_be", Peer: "am_p", Entries: 3}, Transcript: []owner.Entry{{N: 1}, {N: 2}, {N: 3}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("readConversation() = %v, difference (-want +got):\n%s", err, diff)
	}
}

// TestPages: fetchPages joins all pages of a list.
func TestPages(t *testing.T) {
	pages := map[string]string{
		"/owner/tokens":         `{"items":[{"id":"a"},{"id":"b"}],"next":"b"}`,
		"/owner/tokens?after=b": `{"items":[{"id":"c"}],"next":"c"}`,
		"/owner/tokens?after=c": `{"items":[]}`,
	}
	o := &daemon.Client{Client: owner.Client{HTTP: &http.Client{Transport: client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.RequestURI()]
		if !ok {
			t.Errorf("asked for %s", r.URL)
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, page)
	}))}}}
	all, err := fetchPages(t.Context(), o, getCall[owner.List[json.RawMessage]]("tokens", nil), noLimit)
	if all.Next != "" || err != nil {
		t.Fatal(all.Next, err)
	}
	got, err := json.Marshal(all.Items)
	if want := `[{"id":"a"},{"id":"b"},{"id":"c"}]`; err != nil || string(got) != want {
		t.Errorf("fetchPages() = %s, %v, want %s", got, err, want)
	}
}
