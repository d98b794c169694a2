package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// sendCall returns a call that sends a message and waits up to waitSeconds for the result.
type sendCall func(waitSeconds int) owner.Call[owner.Sent]

// sendFlags are the flags for the content and the delivery of a message.
type sendFlags struct {
	Intent string `placeholder:"INTENT" help:"Intent of the message (default: mesh.message for send, the intent of the conversation for reply)."`
	Action string `placeholder:"NAME" help:"Send a payload with only this action: accept, decline, cancel, withdraw…"`
	Text   bool   `help:"Send the payload as a text, even if it begins with { or @. Before a text that may begin with -, write --."`
	Seal   bool   `xor:"seal" help:"Encrypt the message so that only its recipient can read it. In a conversation with a sealed message, this is the default."`
	Open   bool   `xor:"seal" help:"Do not encrypt the message, even if outgoing.seal is prefer."`
	Wait   bool   `help:"Wait for the answer and print it."`
	// Approve is the owner's own decision: an agent must never be able to use it.
	Approve bool `help:"If the message waits for you, print it and approve it at once. Only for people: an agent must not use this flag."`

	isReply bool // the message answers another one
}

// payload returns the payload from an argument: a JSON object, @FILE, - for standard input, or a text for mesh.message
// or mesh.request_info. With --text, every argument is a text. For a text without an intent, payload sets the intent.
func (c *sendFlags) payload(a *app, text string) (wire.Value, error) {
	switch {
	case c.Action != "" && (text != "" || c.Text):
		return wire.Value{}, exit.Fail(exit.Usage, errors.New("give an action or a payload, not both"))
	case c.Action != "":
		return wire.Obj(wire.TextField("action", c.Action)), nil
	case text == "":
		return wire.Value{}, exit.Fail(exit.Usage, errors.New("the message is empty: give a payload, a text or --action"))
	case text == "-" && !c.Text:
		return a.readObject("-")
	case strings.HasPrefix(text, "@") && !c.Text:
		return a.readObject(text[1:])
	case strings.HasPrefix(strings.TrimSpace(text), "{") && !c.Text:
		v, err := wire.ParseObject([]byte(text))
		if err != nil {
			return wire.Value{}, exit.FailHint(exit.Input, fmt.Errorf("payload refused: %w", err), "a payload that begins with { is JSON; add --text to send it as a text")
		}
		return v, nil
	case c.Intent == string(wire.RequestInfo) && c.isReply:
		return hook.TextPayload(wire.RequestInfo, text), nil
	case c.Intent == string(wire.RequestInfo):
		return wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", text)), nil
	case c.Intent != "" && c.Intent != string(wire.Deliver):
		return wire.Value{}, exit.FailHint(exit.Usage, fmt.Errorf("%s needs a JSON object as payload", c.Intent), "for example: '"+c.examplePayload()+"'")
	}
	c.Intent = string(wire.Deliver)
	return hook.TextPayload(wire.Deliver, text), nil
}

// examplePayload returns an example of a payload of the intent, as JSON, for a first message or for a reply.
func (c *sendFlags) examplePayload() string {
	intent := wire.Intent(c.Intent)
	if c.isReply && (intent == wire.Schedule || intent == wire.Negotiate) {
		return `{"action":"accept"}`
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

func (c *sendFlags) sealChoice() owner.SealChoice {
	switch {
	case c.Seal:
		return owner.Sealed
	case c.Open:
		return owner.Unsealed
	}
	return ""
}

type sendCmd struct {
	To           string `arg:"" help:"Agent id, alias, or a name as it is shown."`
	Payload      string `arg:"" optional:"" help:"Text, JSON object (begins with {), @FILE, or - for standard input."`
	Conversation string `placeholder:"CONVERSATION" help:"Continue this conversation."`
	sendFlags
}

func (c *sendCmd) Run(ctx context.Context, a *app) error {
	payload, err := c.payload(a, c.Payload)
	if err != nil {
		return err
	}
	intent := wire.Intent(cmp.Or(c.Intent, string(wire.Deliver)))
	return a.send(ctx, c.sendFlags, func(waitSeconds int) owner.Call[owner.Sent] {
		return owner.SendMessage.With(owner.NewMessage{
			To: c.To, Conversation: wire.ConversationID(c.Conversation), Intent: intent, Payload: payload,
			Seal: c.sealChoice(), WaitSeconds: waitSeconds,
		})
	})
}

type replyCmd struct {
	Conversation string `arg:"" help:"Conversation id, the beginning of the id, or the id of an inbox item. An item is answered only if nobody else has answered it. To answer a task of a bridge, give the id of its item."`
	Payload      string `arg:"" optional:"" help:"Text, JSON object (begins with {), @FILE, or - for standard input."`
	Peer         string `placeholder:"AGENT" help:"The other agent, if two conversations have the same id."`
	Proposal     string `placeholder:"MESSAGE" help:"The message of the proposal that you answer. If another one stands now, nothing is sent."`
	sendFlags
}

func (c *replyCmd) Run(ctx context.Context, a *app) error {
	c.isReply = true
	payload, err := c.payload(a, c.Payload)
	if err != nil {
		return err
	}
	conversation, item := c.Conversation, ""
	if strings.HasPrefix(conversation, "in_") {
		conversation, item = "", conversation
	}
	return a.send(ctx, c.sendFlags, func(waitSeconds int) owner.Call[owner.Sent] {
		return owner.Reply.With(owner.NewReply{
			Conversation: conversation, Item: item, Peer: c.Peer, Intent: wire.Intent(c.Intent), Payload: payload,
			Seal: c.sealChoice(), WaitSeconds: waitSeconds, Proposal: wire.MessageID(c.Proposal),
		})
	})
}

// send makes a call that sends a message, and shows the result. If serve is not running, this process makes the first
// attempt to deliver the message itself, and always waits for the attempt to end.
func (a *app) send(ctx context.Context, c sendFlags, call sendCall) error {
	answer, err := a.withDelivery(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		seconds := 0
		if c.Wait || o.Local != nil {
			seconds = daemon.SendWait
		}
		answer, err := daemon.Raw(ctx, o, call(seconds))
		if err == nil && c.Approve {
			return a.approveSent(ctx, o, answer, seconds)
		}
		return answer, err
	})
	result, err := showAnswer(a, answer, err, a.showSent)
	if err != nil {
		return err
	}
	return sendError(result, c.Wait)
}

// approveSent prints a held message, approves exactly this content by its hash, and waits up to waitSeconds for the
// result. It returns answer unchanged if the message is not held, or if it is held because the recipient's key is not
// proven.
func (a *app) approveSent(ctx context.Context, o *daemon.Client, answer json.RawMessage, waitSeconds int) (json.RawMessage, error) {
	held, err := daemon.Decode[owner.Sent](answer)
	if err != nil || held.State != owner.SendHeld || held.Ask == "" {
		return answer, err
	}
	approval, err := daemon.Fetch(ctx, o, owner.ShowApproval.Call(held.Ask))
	if err != nil {
		return nil, err
	}
	if approval.Rule == owner.RuleUnproven {
		a.Note("not approved by --approve: first decide whether you trust the recipient's key")
		return answer, nil
	}
	for line := range strings.Lines(terminal.CleanJSON(approval.Body)) {
		a.Note("%s", strings.TrimRight(line, "\n"))
	}
	decision := owner.Decision{Choice: acl.Approve, Hash: approval.Hash, By: "cli", WaitSeconds: waitSeconds}
	decided, err := daemon.Raw(ctx, o, owner.DecideApproval.With(decision, held.Ask))
	if err != nil {
		return nil, err
	}
	a.Note("approved by you: %s", terminal.Clean(approval.Hash))
	sent, err := daemon.Decode[struct {
		Sent json.RawMessage `json:"sent"`
	}](decided)
	return sent.Sent, err
}

func (a *app) showSent(s owner.Sent) {
	if s.MessageID != "" {
		a.Print("%s %s in %s", s.State, terminal.Clean(string(s.MessageID)), terminal.Clean(string(s.Conversation)))
	} else { // an answer to a task of a bridge is not a message
		a.Print("%s", s.State)
	}
	if s.ReplyTree.Kind() == wire.Object {
		said, intent := owner.SayMessage(owner.Entry{Message: s.ReplyTree.JSON()}, "")
		a.Print("reply: %s", terminal.Truncate(said.Sentence(intent), maxLine))
	}
	if s.Err != nil {
		a.Note("%s", terminal.Clean(s.Err.String()))
		if s.State == owner.SendQueued {
			a.Hint("the message stays in the outbox; agentmesh serve keeps trying")
		}
	}
	if s.Hint != "" {
		a.Hint("%s", terminal.Clean(s.Hint))
	}
}

// sendError returns an error with the exit code for a result, or nil for success. A delivered message is an error if
// the peer's owner has yet to decide about it. A queued message is an error only with --wait.
func sendError(s owner.Sent, wait bool) error {
	switch s.State {
	case owner.SendHeld:
		return exit.FailSilently(exit.Held)
	case owner.SendDelivered:
		if payload, _ := s.ReplyTree.Get("payload"); payload.GetStr("action") == wire.ActionPending {
			return exit.FailSilently(exit.PeerDecides)
		}
	case owner.SendQueued:
		if wait {
			return exit.FailSilently(exit.TryAgain)
		}
	case owner.SendFailed, owner.SendUnverified:
		return exit.FailSilently(exit.No)
	case owner.SendUnknown:
		return exit.FailSilently(exit.Unavailable)
	}
	return nil
}
