package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
)

// endlessInbox answers each request with a page of new items of a friend, and always has another page.
type endlessInbox struct{ items int }

func (e *endlessInbox) RoundTrip(*http.Request) (*http.Response, error) {
	if e.items > 2*maxUnread {
		return nil, errors.New("too many requests")
	}
	var page owner.List[owner.Item]
	for range batchSize {
		e.items++
		page.Items = append(page.Items, owner.Item{ID: string(rune(e.items)), State: owner.ItemNew, Peer: "am_friend"}, owner.Item{ID: "of another"})
	}
	page.Next = "more"
	body, err := json.Marshal(page)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(body))}, err
}

// TestChannelOfAFullInbox: a channel keeps a bounded number of ids, and none of messages that it never pushes.
func TestChannelOfAFullInbox(t *testing.T) {
	c := NewChannel(Config{Client: &owner.Client{HTTP: &http.Client{Transport: &endlessInbox{}}}}, []string{"am_friend"})
	if err := c.pushNew(t.Context()); err != nil || len(c.known) > maxUnread || c.known["of another"] {
		t.Errorf("%d ids are known, %v", len(c.known), err)
	}
}
