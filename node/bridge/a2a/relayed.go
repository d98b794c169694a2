package a2a

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of the depth and the number of JSON values of a call from a relay. They have room for an A2A call and for what
// the relay adds.
const (
	relayedDepth  = 40
	relayedValues = 21_000
)

// RelayCard returns the card for the mailbox relay, or nil if the node is not behind a relay or does not serve A2A.
func (b *Bridge) RelayCard() []byte {
	if b.cfg.Relay == "" || !b.Serving() {
		return nil
	}
	card, err := b.card(publicCard)
	if err != nil {
		b.log.Warn("a2a: cannot make the card for the relay", "err", err)
		return nil
	}
	return card.JSON()
}

// AnswerCall carries out a call that the mailbox relay accepted, for the caller that the call names by the hash of a token.
// It returns the JSON-RPC answer, and the task and the token under which the relay expects the answer. A call that
// cannot be read gets no answer. The error is a *[wire.Error] and means that the call may succeed later.
func (b *Bridge) AnswerCall(ctx context.Context, raw []byte) (task, token string, answer []byte, err error) {
	v, err := wire.ParseForeign(raw, relayedDepth, relayedValues)
	if err != nil {
		b.log.InfoContext(ctx, "a2a: a call from the relay cannot be read", "err", err)
		return "", "", nil, nil
	}
	task, token = v.GetStr("task"), v.GetStr("answer_token")
	call := message.Call{Binding: message.JSONRPC, Method: v.GetStr("method")}
	call.Params, _ = v.Get("params")
	result, err := b.handleRelayed(ctx, call, v)
	if err == nil {
		return task, token, call.Answer(result), nil
	}
	e := message.FromMesh(err)
	switch {
	case e.Status == http.StatusTooManyRequests, errors.Is(err, waiting.ErrNoPlace): // other mail need not wait
		return "", "", nil, wire.ErrRateLimited.After(e.After).Because(err)
	case e.Status == http.StatusServiceUnavailable:
		return "", "", nil, wire.ErrUnavailable.After(e.After).Because(err)
	}
	_, answer = call.Refuse(e)
	return task, token, answer, nil
}

func (b *Bridge) handleRelayed(ctx context.Context, call message.Call, v wire.Value) (wire.Value, error) {
	from, err := b.identify(ctx, v.GetStr("token"))
	if err != nil {
		return wire.Value{}, err
	}
	if call.Method != message.SendMessage && call.Method != message.CancelTask || !b.Serving() {
		return wire.Value{}, message.ErrUnsupported
	}
	from.relayed = v.GetStr("task")
	extensions, _ := v.Get("extensions")
	from.supportsMesh = slices.ContainsFunc(slices.Collect(extensions.Elems()), func(e wire.Value) bool {
		uri, _ := e.Str()
		return uri == message.Extension
	})
	if call.Method == message.SendMessage { // the relay shows no history
		options, _ := call.Params.Get("configuration")
		call.Params = call.Params.With("configuration", options.With("historyLength", wire.Int(0)))
	} else {
		call.Params = call.Params.With("historyLength", wire.Int(0))
	}
	return b.front.Call(ctx, call, door.Caller{Tasks: session{b, from}, Shares: from.shares()})
}
