package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// sending makes a call that sends a message and waits so many seconds for what comes of it.
type sending func(waitSeconds int) owner.Call[owner.Sent]

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
		return wire.Value{}, exit.Fail(exit.Usage, errors.New("give an action or a payload, not both"))
	case c.Action != "":
		return wire.Obj(wire.Member{Key: "action", Value: wire.Text(c.Action)}), nil
	case text == "":
		return wire.Value{}, exit.Fail(exit.Usage, errors.New("there is nothing to say: give a payload, a text or --action"))
	case text == "-":
		return a.readObject("-")
	case strings.HasPrefix(text, "@"):
		return a.readObject(text[1:])
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		v, err := wire.ParseObject([]byte(text))
		if err != nil {
			return wire.Value{}, exit.Fail(exit.Input, fmt.Errorf("payload refused: %w", err))
		}
		return v, nil
	case c.Intent != "" && c.Intent != string(wire.Deliver):
		return wire.Value{}, exit.FailHint(exit.Usage, fmt.Errorf("%s needs a JSON object as payload", c.Intent), "for example '"+examplePayload(wire.Intent(c.Intent), c.answers)+"'")
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
func (c *content) seal() owner.SealChoice {
	switch {
	case c.Seal:
		return owner.Sealed
	case c.Open:
		return owner.Unsealed
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
	return a.send(ctx, c.content, func(wait int) owner.Call[owner.Sent] {
		return owner.SendMessage.With(owner.NewMessage{
			To: c.To, Conversation: wire.ConversationID(c.Conversation), Intent: wire.Intent(c.Intent), Payload: payload,
			Seal: c.seal(), WaitSeconds: wait,
		})
	})
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
	return a.send(ctx, c.content, func(wait int) owner.Call[owner.Sent] {
		return owner.Reply.With(owner.NewReply{
			Conversation: conversation, Item: item, Peer: c.Peer, Intent: wire.Intent(c.Intent), Payload: payload,
			Seal: c.seal(), WaitSeconds: wait,
		})
	})
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
	if o.Here != nil {
		wait = true
		stop = o.Here.Deliver(ctx)
	}
	seconds := 0
	if wait {
		seconds = daemon.SendWait
	}
	answer, err := daemon.Raw(ctx, o, s(seconds))
	if err == nil && c.Approve {
		answer, err = a.approveSent(ctx, o, answer, seconds)
	}
	stop()
	result, err := present(a, c.JSON, answer, errors.Join(err, o.Close()), a.showSent)
	if err != nil {
		return err
	}
	return outcome(result, asked)
}

// approveSent shows what waits and approves exactly that, by its hash, and waits up to seconds for what becomes of it.
// What does not wait is left alone.
func (a *app) approveSent(ctx context.Context, o *daemon.Client, answer json.RawMessage, seconds int) (json.RawMessage, error) {
	held, err := daemon.Decode[owner.Sent](answer)
	if err != nil || held.State != owner.SendHeld || held.Ask == "" {
		return answer, err
	}
	k, err := daemon.Fetch(ctx, o, owner.ShowApproval.Call(held.Ask))
	if err != nil {
		return nil, err
	}
	if k.Rule == owner.RuleUnproven {
		a.Note("not approved by --approve: who the recipient is must be decided first")
		return answer, nil
	}
	for line := range strings.Lines(terminal.CleanJSON(k.Body)) {
		a.Note("%s", strings.TrimRight(line, "\n"))
	}
	decision := owner.Decision{Choice: acl.Approve, Hash: k.Hash, By: "cli", WaitSeconds: seconds}
	decided, err := daemon.Raw(ctx, o, owner.DecideApproval.With(decision, held.Ask))
	if err != nil {
		return nil, err
	}
	a.Note("approved by you: %s", terminal.Clean(k.Hash))
	sent, err := daemon.Decode[struct {
		Sent json.RawMessage `json:"sent"`
	}](decided)
	return sent.Sent, err
}

func (a *app) showSent(s owner.Sent) {
	if s.MessageID != "" {
		a.Print("%s %s in %s", s.State, terminal.Clean(string(s.MessageID)), terminal.Clean(string(s.Conversation)))
	} else { // an answer to a task of a bridge is no message
		a.Print("%s", s.State)
	}
	if s.ReplyTree.Kind() == wire.Object {
		a.Print("reply: %s", payloadLine(s.ReplyTree.JSON()))
	}
	if s.Err != nil {
		a.Note("%s", terminal.Clean(s.Err.String()))
		if s.State == owner.SendQueued {
			a.Hint("it stays in the outbox; agentmesh serve goes on trying")
		}
	}
	if s.Hint != "" {
		a.Hint("%s", terminal.Clean(s.Hint))
	}
}

// outcome is the exit code of a sending. A message that is still queued is what was asked for, unless the user wanted
// to wait for its answer.
func outcome(s owner.Sent, waited bool) error {
	switch s.State {
	case owner.SendQueued:
		if waited {
			return exit.Quietly(exit.TryAgain)
		}
	case owner.SendFailed, owner.SendUnverified:
		return exit.Quietly(exit.No)
	case owner.SendUnknown:
		return exit.Quietly(exit.Unavailable)
	}
	return nil
}
