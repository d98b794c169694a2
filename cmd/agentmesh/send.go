package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/wire"
)

// sendWait is how long a command waits for an answer: the time a peer has for it, and some for the way (AM-32).
const sendWait = 40

// sending is a call that sends a message and can wait for what comes of it.
type sending struct {
	path string
	body func(waitSeconds int) any
}

// content is what a message says, as flags and arguments of send and reply.
type content struct {
	Intent string `placeholder:"INTENT" help:"Intent of the message (send: mesh.message; reply: that of the conversation)."`
	Action string `placeholder:"NAME" help:"A payload that is an action alone: accept, decline, cancel, withdraw…"`
	Seal   bool   `xor:"seal" help:"Encrypt it so that only its recipient can read it. In a conversation where somebody sealed, that is so by itself."`
	Open   bool   `xor:"seal" help:"Do not encrypt it, whatever outgoing.seal prefers."`
	Wait   bool   `help:"Wait for the answer and print it."`
	// The owner's hand: what an agent types must never have it.
	Approve bool `help:"Approve it at once, with what is printed, where it would wait for you. For your own hand, never for an agent."`
	JSON    bool `help:"Print the result as JSON."`

	answers bool // it answers somebody
}

// payload reads the payload: a JSON object, @FILE, - for standard input, or a text, which becomes mesh.message.
func (c *content) payload(a *app, text string) (wire.Value, error) {
	switch {
	case c.Action != "" && text != "":
		return wire.Value{}, fail(exitUsage, errors.New("give an action or a payload, not both"))
	case c.Action != "":
		return wire.Obj(wire.Member{Key: "action", Value: wire.Text(c.Action)}), nil
	case text == "":
		return wire.Value{}, fail(exitUsage, errors.New("there is nothing to say: give a payload, a text or --action"))
	case text == "-":
		return a.readObject("-")
	case strings.HasPrefix(text, "@"):
		return a.readObject(text[1:])
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		v, err := wire.ParseObject([]byte(text))
		if err != nil {
			return wire.Value{}, fail(exitInput, fmt.Errorf("payload refused: %w", err))
		}
		return v, nil
	case c.Intent != "" && c.Intent != string(wire.Deliver):
		return wire.Value{}, failHint(exitUsage, fmt.Errorf("%s needs a JSON object as payload", c.Intent), "for example '"+examplePayload(wire.Intent(c.Intent), c.answers)+"'")
	}
	c.Intent = string(wire.Deliver)
	body := wire.Obj(wire.Member{Key: "body", Value: wire.Text(text)})
	return wire.Obj(
		wire.Member{Key: "action", Value: wire.Text("deliver")},
		wire.Member{Key: "message", Value: body},
	), nil
}

// examplePayload returns a payload of the intent, as JSON: one that opens a conversation, or one that answers.
func examplePayload(intent wire.Intent, answers bool) string {
	switch intent {
	case wire.RequestInfo:
		if answers {
			return `{"action":"answer","answer":"…"}`
		}
		return `{"action":"ask","question":"…"}`
	case wire.Schedule, wire.Negotiate:
		if answers {
			return `{"action":"accept"}`
		}
	}
	switch intent {
	case wire.Schedule:
		return `{"action":"propose","event":{"title":"…","duration":"30m","proposed_times":["2030-01-31T10:00:00Z"]}}`
	case wire.Negotiate:
		return `{"action":"propose","terms":{"description":"…"}}`
	case wire.Handoff:
		return `{"action":"request_human","reason":"…"}`
	}
	return `{"action":"…"}`
}

// seal is the choice as the owner API takes it.
func (c *content) seal() string {
	switch {
	case c.Seal:
		return string(node.Sealed)
	case c.Open:
		return string(node.Unsealed)
	}
	return ""
}

type sendCmd struct {
	To           string `arg:"" help:"Agent id or alias."`
	Payload      string `arg:"" optional:"" help:"JSON object, @FILE, - for standard input, or a text to deliver."`
	Conversation string `placeholder:"CONVERSATION" help:"Go on in this conversation."`
	content
}

func (c *sendCmd) Run(ctx context.Context, a *app) error {
	payload, err := c.payload(a, c.Payload)
	if err != nil {
		return err
	}
	if c.Intent == "" {
		c.Intent = string(wire.Deliver)
	}
	return a.send(ctx, c.content, sending{"send", func(wait int) any {
		return struct {
			To           string     `json:"to"`
			Conversation string     `json:"conversation,omitempty"`
			Intent       string     `json:"intent"`
			Payload      wire.Value `json:"payload"`
			Seal         string     `json:"seal,omitempty"`
			WaitSeconds  int        `json:"wait_seconds"`
		}{c.To, c.Conversation, c.Intent, payload, c.seal(), wait}
	}})
}

type replyCmd struct {
	Conversation string `arg:"" help:"Conversation id, or the beginning of one; or the id of an inbox item, which is answered only if nobody else has. A task of a bridge is answered by its item."`
	Payload      string `arg:"" optional:"" help:"JSON object, @FILE, - for standard input, or a text to deliver."`
	Peer         string `placeholder:"AGENT" help:"The other agent, where two conversations have the same id."`
	content
}

func (c *replyCmd) Run(ctx context.Context, a *app) error {
	c.answers = true
	payload, err := c.payload(a, c.Payload)
	if err != nil {
		return err
	}
	conversation, item := c.Conversation, ""
	if strings.HasPrefix(conversation, "in_") {
		conversation, item = "", conversation
	}
	return a.send(ctx, c.content, sending{"reply", func(wait int) any {
		return struct {
			Conversation string     `json:"conversation,omitempty"`
			Item         string     `json:"item,omitempty"`
			Peer         string     `json:"peer,omitempty"`
			Intent       string     `json:"intent,omitempty"`
			Payload      wire.Value `json:"payload"`
			Seal         string     `json:"seal,omitempty"`
			WaitSeconds  int        `json:"wait_seconds"`
		}{conversation, item, c.Peer, c.Intent, payload, c.seal(), wait}
	}})
}

// sent is what the commands show of a sending.
type sent struct {
	MessageID    string          `json:"message_id"`
	Conversation string          `json:"conversation_id"`
	State        string          `json:"state"` // queued, delivered, reply_unverified, failed, unknown, held
	Reply        json.RawMessage `json:"reply"`
	Error        *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Hint string `json:"hint"`
	Ask  string `json:"ask"`
}

// send makes a call that sends a message, and shows what became of it. Where no serve runs this process makes the
// first attempt itself, and so always waits for it.
func (a *app) send(ctx context.Context, c content, s sending) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	wait := c.Wait
	stop := func() {}
	asked := wait
	if o.here != nil {
		wait = true
		stop = o.here.deliver(ctx)
	}
	seconds := 0
	if wait {
		seconds = sendWait
	}
	raw, err := o.call(ctx, http.MethodPost, s.path, nil, s.body(seconds))
	if err == nil && c.Approve {
		raw, err = a.approveSent(ctx, o, raw, seconds)
	}
	stop()
	result, err := present(a, c.JSON, raw, errors.Join(err, o.close()), a.showSent)
	if err != nil {
		return err
	}
	return result.outcome(asked)
}

// approveSent shows what waits and approves exactly that, by its hash, and waits up to seconds for what becomes of it.
// What does not wait is left alone.
func (a *app) approveSent(ctx context.Context, o *owner, raw json.RawMessage, seconds int) (json.RawMessage, error) {
	held, err := decode[sent](raw)
	if err != nil || held.State != "held" || held.Ask == "" {
		return raw, err
	}
	path := "approvals/" + url.PathEscape(held.Ask)
	shown, err := o.call(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	k, err := decode[acl.Ask](shown)
	if err != nil {
		return nil, err
	}
	if k.Rule == node.RuleUnproven {
		a.note("not approved by --approve: who the recipient is must be decided first")
		return raw, nil
	}
	for line := range strings.Lines(cleanJSON(k.Body)) {
		a.note("%s", strings.TrimRight(line, "\n"))
	}
	decided, err := o.call(ctx, http.MethodPost, path, nil, decision{acl.Approve, k.Hash, "cli", seconds})
	if err != nil {
		return nil, err
	}
	a.note("approved by you: %s", clean(k.Hash))
	answer, err := decode[struct {
		Sent json.RawMessage `json:"sent"`
	}](decided)
	return answer.Sent, err
}

func (a *app) showSent(s sent) {
	if s.MessageID != "" {
		a.print("%s %s in %s", s.State, clean(s.MessageID), clean(s.Conversation))
	} else { // an answer to a task of a bridge is no message
		a.print("%s", s.State)
	}
	if len(s.Reply) > 0 && string(s.Reply) != "null" {
		a.print("reply: %s", payloadLine(s.Reply))
	}
	if s.Error != nil {
		text := s.Error.Message
		if s.Error.Code != "" {
			text = s.Error.Code + ": " + text
		}
		a.note("%s", clean(text))
		if s.State == "queued" {
			a.hint("it stays in the outbox; agentmesh serve goes on trying")
		}
	}
	if s.Hint != "" {
		a.hint("%s", clean(s.Hint))
	}
}

// outcome is the exit code of a sending. A message that is still queued is what was asked for, unless the user wanted
// to wait for its answer.
func (s sent) outcome(waited bool) error {
	switch s.State {
	case "queued":
		if waited {
			return quietly(exitTryAgain)
		}
	case "failed", "reply_unverified":
		return quietly(exitNo)
	case "unknown":
		return quietly(exitUnavailable)
	}
	return nil
}
