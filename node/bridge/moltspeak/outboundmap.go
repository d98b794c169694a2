package moltspeak

import (
	"fmt"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newDrafts returns the MoltSpeak messages that carry a message of the node in a conversation with this state. The list
// is empty if MoltSpeak has no message for it.
func newDrafts(d bridge.Delivery, state convState) ([]message.Draft, error) {
	m := d.Message
	payload := m.Payload.Without("metadata")
	action := m.Action()
	if state.Re != "" {
		return respondTo(state, payload, action), nil
	}
	p := payload // the payload of the draft
	endsByItself := slices.Contains([]wire.Intent{wire.RequestInfo, IntentQuery, IntentTool, IntentStream}, m.Intent)
	switch {
	case isNotice(action), action == wire.ActionClose && endsByItself:
		return nil, nil // MoltSpeak has no message for it
	case action == wire.ActionClose: // of a task
		outcome := "complete"
		if payload.GetStr("status") == "failed" {
			outcome = "cancel"
		}
		return []message.Draft{{Op: message.OpTask, P: wire.Obj(wire.TextField("action", outcome), wire.TextField("task_id", string(m.Conversation)))}}, nil
	case m.Intent == wire.RequestInfo && action == "ask":
		return []message.Draft{{Op: message.OpQuery, P: wire.Obj(wire.TextField("domain", ownDomain), wire.TextField("intent", "ask"), wire.Field("params", payload.Without("action")))}}, nil
	case m.Intent == IntentQuery:
		p = payload.Without("action")
		return checkDraft(message.Draft{Op: message.OpQuery, P: p})
	case m.Intent == IntentTask:
		if p.GetStr("task_id") == "" {
			p = p.With("task_id", wire.Text(string(m.Conversation)))
		}
		return checkDraft(message.Draft{Op: message.OpTask, P: p})
	case m.Intent == IntentTool:
		return checkDraft(message.Draft{Op: message.OpTool, P: p, Cap: []string{"tool.invoke"}})
	case m.Intent == IntentStream:
		return message.SplitStream(p, string(m.Conversation))
	}
	return []message.Draft{{Op: message.OpTask, P: wire.Obj(wire.TextField("action", "create"), wire.TextField("task_id", string(m.Conversation)),
		wire.TextField("type", string(m.Intent)), wire.Field("params", payload))}}, nil
}

// checkDraft returns a list with the draft, or an error if its payload breaks the rules of MoltSpeak for its operation.
func checkDraft(d message.Draft) ([]message.Draft, error) {
	if _, e := (message.Message{Op: d.Op, P: d.P}).Payload(); e != nil {
		return nil, fmt.Errorf("moltspeak: the payload is not valid for this operation: %w", e)
	}
	return []message.Draft{d}, nil
}

// respondTo returns the respond that answers the peer's message state.Re with our payload, or nil for a close after the
// final answer.
func respondTo(state convState, payload wire.Value, action string) []message.Draft {
	if action == wire.ActionClose && state.Done {
		return nil
	}
	// In a record of an older version, the operation and the intent show whether the peer uses AgentMesh payloads.
	toMesh := state.MeshPayload || state.Op == message.OpTask && wire.Intent(state.Intent).IsStandard()
	d := message.Draft{Op: message.OpRespond, Re: state.Re, P: toRespond(payload, toMesh, state.Op == message.OpTask).Value()}
	if state.Confidential {
		d.Class = message.Confidential
	}
	return []message.Draft{d}
}
