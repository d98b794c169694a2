package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Trial is the outcome of a test run of a handler.
type Trial struct {
	Input    json.RawMessage `json:"input"`              // the document for the hook; OpenClaw and A2A get a text instead
	Output   string          `json:"output,omitempty"`   // what the hook wrote; empty for OpenClaw and A2A
	Answer   json.RawMessage `json:"answer,omitempty"`   // the payload that the node would sign
	Progress []wire.Value    `json:"progress,omitempty"` // what the hook reported before the answer
	Took     time.Duration   `json:"took_ns"`
	OK       bool            `json:"ok"`
	Verdict  string          `json:"verdict"` // what would become of the answer
	Fault    Fault           `json:"fault,omitempty"`
	Exit     int             `json:"exit_status,omitempty"`
	Stderr   string          `json:"stderr,omitempty"`
}

// NewTrialCall returns a call with a payload from an agent that does not exist. Every call has its own ids, so that
// nothing takes it for a repeat.
func NewTrialCall(self wire.AgentID, intent wire.Intent, payload wire.Value) (Call, error) {
	known, err := wire.CheckPayload(intent, payload)
	if err != nil {
		return Call{}, err
	}
	const peer = "am_hooks-test"
	now := time.Now()
	m := wire.Message{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: peer, To: self, Time: now, Intent: intent, Payload: payload,
	}
	return Call{
		Message: m, Payload: payload.JSON(), Attempt: 1, ActionKnown: known,
		Conversation: conversations.Conversation{
			Key: store.ConvKey{Peer: peer, ID: string(m.Conversation)}, State: conversations.Open, Opened: now,
		},
		Sender: Sender{AgentID: peer, Name: "agentmesh hooks test", Verified: "signature"},
	}, nil
}

// Try runs a handler once and reports what happened. It stores and sends nothing.
func Try(ctx context.Context, h Handler, c Call) Trial {
	t := Trial{Input: c.document()}
	var output bytes.Buffer
	c.tap = &output
	c.Progress = func(r Result) { t.Progress = append(t.Progress, r.AddTo(wire.Obj())) }
	began := time.Now()
	answer, err := h.Handle(ctx, c)
	t.Took, t.Output = time.Since(began), strings.ToValidUTF8(output.String(), "\ufffd")
	t.OK = err == nil
	switch {
	case err != nil:
		t.Verdict = err.Error()
		if e, ok := errors.AsType[*Error](err); ok {
			t.Fault, t.Exit, t.Stderr = e.Fault, e.Exit, e.Stderr
		}
	case answer.Hold != "":
		t.Verdict = "the message would wait for the owner: " + answer.Hold
	case answer.Err != nil:
		t.Verdict = "the sender would get the error " + string(answer.Err.Code)
	case answer.Async:
		t.Verdict = "the hook accepted the message, and its answer would come later through the owner API"
	case answer.Payload == nil:
		t.Verdict = "the hook has nothing to say: the sender would get a receipt"
	default:
		t.Answer = answer.Payload.JSON()
		t.Verdict = "the node would sign the answer and send it, if your rules for outgoing messages allow that"
	}
	if !c.ActionKnown {
		t.Verdict += "; warning: the intent does not define the action of this payload"
	}
	return t
}
