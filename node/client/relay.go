package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// RelayItem is a message or an A2A call from a mailbox (AM-64).
type RelayItem struct {
	ID      string
	Message []byte // the bytes as the sender sent them; nil for a call
	Call    []byte // an A2A call that the directory accepted for the agent; nil for a message
	Created time.Time
	ReplyBy time.Time // until when the sender waits for the reply (AM-67); zero if it does not wait
}

const maxMailAnswer = 32 << 20 // a hundred messages of 256 KiB and the data around them

// Mail returns the messages that wait for an agent in its mailbox at the directory, or that arrive within wait. The
// directory counts whole seconds and refuses more than 30 s. A message stays in the mailbox until it is acknowledged.
// If after is the id of an item, Mail returns only later items. If calls is set, Mail also returns A2A calls. Mail does
// not check the messages.
func (d *Directory) Mail(ctx context.Context, cred Credential, id wire.AgentID, after string, wait time.Duration, calls bool) ([]RelayItem, error) {
	params := url.Values{"agent_id": {string(id)}, "wait": {strconv.Itoa(int(wait / time.Second))}}
	if after != "" {
		params.Set("after", after)
	}
	if calls {
		params.Set("a2a", "1")
	}
	r := request{op: opMail, method: http.MethodGet, path: "/relay?" + params.Encode(), cred: cred, max: maxMailAnswer, timeout: defaultAnswer + wait}
	resp, err := d.do(ctx, r, http.StatusOK)
	if err != nil {
		return nil, err
	}
	var page struct {
		Messages []struct {
			ID      string          `json:"relay_id"`
			Message json.RawMessage `json:"message"`
			Call    json.RawMessage `json:"a2a"`
			Created time.Time       `json:"created_at"`
			ReplyBy time.Time       `json:"reply_by"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(resp.body, &page); err != nil { // the strict reader parses each message later
		return nil, d.badAnswer(r.op, resp.status, err)
	}
	items := make([]RelayItem, len(page.Messages))
	for i, m := range page.Messages {
		items[i] = RelayItem{m.ID, m.Message, m.Call, m.Created, m.ReplyBy}
	}
	return items, nil
}

// Acknowledge removes a message from the mailbox.
func (d *Directory) Acknowledge(ctx context.Context, cred Credential, relayID string) error {
	path := "/relay/" + url.PathEscape(relayID) + "/ack"
	_, err := d.do(ctx, request{op: opMail, method: http.MethodPost, path: path, cred: cred}, http.StatusOK)
	return err
}

// PublishA2ACard publishes the A2A card of the agent with this id. The directory then accepts A2A calls for the agent.
func (d *Directory) PublishA2ACard(ctx context.Context, cred Credential, id wire.AgentID, card []byte) error {
	path := "/mailbox/" + url.PathEscape(string(id)) + "/a2a"
	_, err := d.do(ctx, request{op: opMail, method: http.MethodPut, path: path, body: card, cred: cred}, http.StatusNoContent)
	return err
}

// AnswerCall passes the answer to an A2A call to the directory. task and token are from the call. next is a call that
// cancels the agent's task, if the caller has canceled it meanwhile; otherwise nil. AnswerCall also succeeds if the
// directory no longer knows the call: then nobody waits for the answer.
func (d *Directory) AnswerCall(ctx context.Context, task, token string, answer []byte) (next []byte, err error) {
	path := "/relay/" + url.PathEscape(task) + "/task"
	header := http.Header{"X-A2a-Notification-Token": {token}}
	resp, err := d.do(ctx, request{op: opMail, method: http.MethodPost, path: path, header: header, body: answer}, http.StatusOK, http.StatusNotFound)
	if err != nil || resp.status == http.StatusNotFound {
		return nil, err
	}
	var report struct {
		Next json.RawMessage `json:"a2a"`
	}
	if err := json.Unmarshal(resp.body, &report); err != nil {
		return nil, d.badAnswer(opMail, resp.status, err)
	}
	return report.Next, nil
}

// Answer passes a reply or an error body to the waiting sender of a message. [ErrTaken] means that the sender no
// longer waits.
func (d *Directory) Answer(ctx context.Context, cred Credential, relayID string, body []byte) error {
	path := "/relay/" + url.PathEscape(relayID) + "/reply"
	_, err := d.do(ctx, request{op: opMail, method: http.MethodPost, path: path, body: body, cred: cred}, http.StatusOK)
	return err
}
