package moltspeak

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newDraft returns the MoltSpeak message that carries a message of the node in a conversation with this state. It reports
// false if MoltSpeak has no message for it.
func newDraft(d bridge.Delivery, state convState) (draft message.Draft, needed bool, err error) {
	m := d.Message
	payload := m.Payload.Without("metadata")
	action := m.Action()
	if state.Re != "" {
		draft, needed = respondTo(state, payload, action)
		return draft, needed, nil
	}
	p := payload // the payload of the draft
	endsByItself := slices.Contains([]wire.Intent{wire.RequestInfo, IntentQuery, IntentTool, IntentStream}, m.Intent)
	switch {
	case isNotice(action), action == wire.ActionClose && endsByItself:
		return draft, false, nil
	case action == wire.ActionClose: // of a task
		outcome := "complete"
		if payload.GetStr("status") == "failed" {
			outcome = "cancel"
		}
		return message.Draft{Op: message.OpTask, P: wire.Obj(wire.TextField("action", outcome), wire.TextField("task_id", string(m.Conversation)))}, true, nil
	case m.Intent == wire.RequestInfo && action == "ask":
		p = wire.Obj(wire.TextField("domain", ownDomain), wire.TextField("intent", "ask"), wire.Field("params", payload.Without("action")))
		return message.Draft{Op: message.OpQuery, P: p}, true, nil
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
		return draft, false, errors.New("moltspeak: the node receives streams, but sends none; use a task")
	}
	p = wire.Obj(wire.TextField("action", "create"), wire.TextField("task_id", string(m.Conversation)), wire.TextField("type", string(m.Intent)), wire.Field("params", payload))
	return message.Draft{Op: message.OpTask, P: p}, true, nil
}

// checkDraft returns an error if the payload of the draft breaks the rules of MoltSpeak for its operation.
func checkDraft(d message.Draft) (message.Draft, bool, error) {
	if _, e := (message.Message{Op: d.Op, P: d.P}).Payload(); e != nil {
		return d, false, fmt.Errorf("moltspeak: the payload is not valid for this operation: %w", e)
	}
	return d, true, nil
}

// respondTo returns the respond that answers the peer's message state.Re with our payload. It reports false for a close
// after the final answer.
func respondTo(state convState, payload wire.Value, action string) (message.Draft, bool) {
	if action == wire.ActionClose && state.Done {
		return message.Draft{}, false
	}
	d := message.Draft{Op: message.OpRespond, Re: state.Re, P: toRespond(payload, state.MeshPayload, state.Op == message.OpTask).Value()}
	if state.Confidential {
		d.Class = message.Confidential
	}
	return d, true
}
