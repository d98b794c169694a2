package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// These are codes of JSON-RPC errors.
const (
	rpcNoMethod = -32601
	rpcParams   = -32602
	rpcRefused  = -32001 // the owner or a rule of the owner refused
	rpcFailed   = -32000
)

// rpcError returns an object with the error of a JSON-RPC response.
func rpcError(code int64, message string) wire.Value {
	return wire.Obj(wire.Field("error", wire.Obj(wire.Field("code", wire.Int(code)), wire.TextField("message", message))))
}

// handleProposal gives an mcp/proposal for this node to the node, which asks the owner about it (MEW-L3). A proposal
// that the node does not accept is no longer pending.
func (l *Link) handleProposal(ctx context.Context, j job) error {
	if !l.passesFilter(&j.e, string(j.e.Payload.JSON())) {
		l.dropProposal(&j)
		return nil
	}
	me := l.Name()
	others := slices.DeleteFunc(slices.Clone(j.e.To), func(id string) bool { return id == me })
	conv := proposalConv(l.cfg.Name, &j)
	payload := wire.Obj(wire.TextField("action", "propose"), wire.Field("proposal", j.e.Payload))
	if len(others) > 0 {
		payload = payload.With("to", wire.Texts(others))
	}
	in, err := l.newInbound(&j, conv, IntentProposal, payload)
	if err == nil {
		in.Records = []store.Change{l.rememberProposal(storedProposal{Conv: conv, From: j.e.From, Envelope: j.e.ID})}
		_, err = l.b.cfg.Mesh.Accept(ctx, in)
	}
	if err != nil {
		l.dropProposal(&j)
	}
	l.tellRefusal(ctx, &j.e, err)
	return err
}

// dropProposal takes a proposal off the list of pending ones, because the owner is never asked about it.
func (l *Link) dropProposal(j *job) {
	l.space.withBoard(func(b *view.Board) { b.SetWaiting(proposalConv(l.cfg.Name, j), false) })
}

// proposalConv returns the conversation in which the owner is asked about a proposal. Each proposal has its own.
func proposalConv(link string, j *job) wire.ConversationID {
	return wire.ConversationID("conv_" + wire.HashOf(link, j.e.From, "proposal", string(j.raw)))
}

func (l *Link) rememberProposal(p storedProposal) store.Change {
	c := l.records.rememberInContext("prop", string(p.Conv), p, keepChat)
	c.Record.Terms = append(c.Record.Terms, l.proposalTerm(p.Envelope))
	return c
}

func (l *Link) proposalTerm(id string) string { return l.records.key("prop", wire.HashOf(id)) }

// closeProposals ends the questions to the owner about the proposals that the envelope in j withdraws or fulfills. Only
// the proposer can withdraw a proposal.
func (l *Link) closeProposals(ctx context.Context, j job, reason string) error {
	for _, id := range j.e.Correlation[:min(len(j.e.Correlation), maxCorrelated)] {
		for rec, err := range store.AllRecords(ctx, l.records.store, nsLinks, l.proposalTerm(id), time.Now()) {
			if err != nil {
				return err
			}
			var p storedProposal
			if json.Unmarshal(rec.Body, &p) != nil || p.Envelope != id || j.e.Kind == envelope.KindWithdraw && p.From != j.e.From {
				continue
			}
			fromProposer := j
			fromProposer.e.From = p.From // the conversation is with the proposer
			if err := l.withdraw(ctx, fromProposer, p.Conv, IntentProposal, "", reason, []store.Change{l.records.drop("prop", string(p.Conv))}); err != nil {
				return err
			}
		}
	}
	return nil
}

// reject sends the rejection of the proposal that a conversation is about, if the proposal is not settled yet.
func (l *Link) reject(ctx context.Context, conv wire.ConversationID, reason string) error {
	p, ok := load[storedProposal](ctx, l.records, "prop", string(conv))
	if !ok {
		return nil // already settled
	}
	err := l.space.say(ctx, p.rejection(reason))
	if err == nil || errors.Is(err, errMayNot) {
		l.records.apply(ctx, l.records.drop("prop", string(conv)))
	}
	return err
}

// rejection returns the envelope that rejects the proposal, with the owner's reason or else with reason.
func (p storedProposal) rejection(reason string) envelope.Draft {
	return envelope.Draft{
		ID: "am-r-" + wire.HashOf(string(p.Conv)), Kind: envelope.KindReject, To: []string{p.From}, Correlation: []string{p.Envelope},
		Payload: wire.Obj(wire.TextField("reason", cmp.Or(p.Reason, reason))),
	}
}

// request returns the request that fulfills the proposal. others are the participants that the proposal named besides
// this node, whose id is me. The request goes to them or, if others is empty, to this node.
func (p storedProposal) request(others []string, me string, payload wire.Value) envelope.Draft {
	d := envelope.Draft{
		ID: "am-f-" + wire.HashOf(string(p.Conv)), Kind: envelope.KindRequest, To: others, Correlation: []string{p.Envelope},
		Payload: envelope.RequestFor(payload),
	}
	if len(others) == 0 {
		d.To = []string{me}
	}
	return d
}

// fulfill sends the request that the owner approved, in the name of the node and with the proposal in correlation_id
// (MEW-11). If the request cannot be sent, the owner is asked again, with the reason (MEW-L4).
func (l *Link) fulfill(ctx context.Context, c bridge.Call) (bridge.Reply, error) {
	p, ok := load[storedProposal](ctx, l.records, "prop", string(c.Conv))
	if !ok {
		return bridge.Reply{}, nil
	}
	payload, _ := c.Payload.Get("proposal")
	list, _ := c.Payload.Get("to")
	to, _ := envelope.ParseIDs(list)
	request := p.request(to, l.Name(), payload)
	if len(to) > 0 {
		l.records.apply(ctx, l.records.remember("sent", request.ID, sentEnvelope{Conv: c.Conv, Peer: p.From, Proposal: p.Envelope, To: to}, keepSent))
	}
	if err := l.space.say(ctx, request); err != nil {
		text := "the request could not be sent: "
		if mayHaveArrived(err) {
			text = "the request may have reached the space, and another approval sends it again: "
		}
		return bridge.Reply{Hold: text + envelope.ToPrintable(err.Error(), 200)}, nil
	}
	l.records.apply(ctx, l.records.drop("prop", string(c.Conv)))
	if len(to) > 0 {
		return bridge.Reply{}, nil
	}
	id, _ := request.Payload.Get("id")
	l.records.apply(ctx, l.records.remember("asked", string(c.Conv), storedRequest{From: p.From, Envelope: request.ID, ID: id.JSON()}, keepSent))
	end := closePayload(l.runProposal(ctx, p.From, payload)) // deliverClose sends its result as the mcp/response
	return bridge.Reply{Payload: &end}, nil
}

// runProposal runs a proposal that named only this node. It must be a tool call. The tool need not be in policy.tools,
// because the owner approved this call.
func (l *Link) runProposal(ctx context.Context, from string, proposal wire.Value) wire.Value {
	params, _ := proposal.Get("params")
	name := params.GetStr("name")
	if proposal.GetStr("method") != methodCall || !slices.Contains(toolNames, name) {
		return rpcError(rpcNoMethod, "this node has no such method or tool")
	}
	arguments, _ := params.Get("arguments")
	return l.runTool(ctx, from, name, arguments)
}

// closePayload returns the payload that closes the conversation about a request with its result.
func closePayload(result wire.Value) wire.Value {
	status := "completed"
	if _, failed := result.Get("error"); failed {
		status = "failed"
	}
	return wire.Obj(append([]wire.Member{wire.TextField("action", wire.ActionClose), wire.TextField("status", status)}, result.Members()...)...)
}

// copyResult returns v with the result or the error of a JSON-RPC answer.
func copyResult(v, answer wire.Value) wire.Value {
	for _, key := range []string{"result", "error"} {
		if member, has := answer.Get(key); has {
			v = v.With(key, member)
		}
	}
	return v
}

// handleResponse handles the answer to a request by which this node fulfilled a proposal. It ends the conversation about
// that proposal.
func (l *Link) handleResponse(ctx context.Context, j job) error {
	for _, id := range j.e.Correlation[:min(len(j.e.Correlation), maxCorrelated)] {
		s, ok := load[sentEnvelope](ctx, l.records, "sent", id)
		if !ok || s.Proposal == "" || !slices.Contains(s.To, j.e.From) {
			continue
		}
		result := copyResult(wire.Obj(wire.TextField("responder", j.e.From)), j.e.Payload)
		fromProposer := j
		fromProposer.e.From = s.Peer
		end := closePayload(result)
		in, err := l.newInbound(&fromProposer, s.Conv, IntentProposal, end)
		if err != nil { // the owner at least learns that the request is done
			end = end.Without("result", "error").With("reason", wire.Text("the answer cannot be stored: "+err.Error()))
			fromProposer.raw = markSource(l.address(s.Peer), end, j.e.ID).JSON() // with the id, so that two of them differ
			in, err = l.newInbound(&fromProposer, s.Conv, IntentProposal, end)
		}
		if err != nil {
			return err
		}
		in.Records, in.Draw = []store.Change{l.records.drop("sent", id)}, bridge.DrawNothing // it counts toward no limit, because we asked for it
		_, err = l.b.cfg.Mesh.Accept(ctx, in)
		return err
	}
	return nil
}

const (
	methodCall  = "tools/call"
	mcpProtocol = "2025-06-18"
)

// handleRequest answers an mcp/request to this node: a tool call after the node's checks, like any message (MEW-L3),
// and other methods at once. A notification gets no answer. A request without a JSON-RPC id is answered too, because
// the SDK of the reference sends no id and relies on correlation_id.
func (l *Link) handleRequest(ctx context.Context, j job) error {
	method := j.e.Payload.GetStr("method")
	if strings.HasPrefix(method, "notifications/") {
		return nil
	}
	if method != methodCall { // charged here, because the node does not see it
		if wait, ok := l.meter.Charge(bridge.DrawMessage, j.at); !ok {
			err := wire.ErrRateLimited.After(wait)
			l.tellRefusal(ctx, &j.e, err)
			return err
		}
	}
	id, _ := j.e.Payload.Get("id")
	var result wire.Value
	switch method {
	case "initialize":
		result = wire.Obj(wire.TextField("protocolVersion", mcpProtocol),
			wire.Field("capabilities", wire.Obj(wire.Field("tools", wire.Obj()))),
			wire.Field("serverInfo", wire.Obj(wire.TextField("name", "agentmesh"), wire.TextField("version", wire.Version))))
	case "ping":
		result = wire.Obj()
	case "tools/list":
		result = wire.Obj(wire.Field("tools", toolList(l.cfg.Policy.Tools)))
	case methodCall:
		return l.handleToolCall(ctx, j, id)
	default:
		l.respond(&j.e, id, rpcError(rpcNoMethod, "this node has no such method"))
		return nil
	}
	l.respond(&j.e, id, wire.Obj(wire.Field("result", result)))
	return nil
}

// rpcAnswer returns a JSON-RPC response with the members of result: "result" or "error".
func rpcAnswer(id, result wire.Value) wire.Value {
	members := []wire.Member{wire.TextField("jsonrpc", "2.0")}
	if !id.IsNull() {
		members = append(members, wire.Field("id", id))
	}
	return wire.Obj(append(members, result.Members()...)...)
}

// respond sends the response to the mcp/request e, whose JSON-RPC id is id.
func (l *Link) respond(e *envelope.Envelope, id, result wire.Value) {
	l.space.answer(e, envelope.KindResponse, rpcAnswer(id, result))
}

// handleToolCall gives a tools/call to the node, which checks it.
func (l *Link) handleToolCall(ctx context.Context, j job, id wire.Value) error {
	params, _ := j.e.Payload.Get("params")
	name := params.GetStr("name")
	refuse := func(code int64, text string) {
		l.respond(&j.e, id, rpcError(code, text))
	}
	if !slices.Contains(l.cfg.Policy.Tools, name) {
		refuse(rpcParams, "this node offers no such tool here")
		return nil
	}
	arguments, _ := params.Get("arguments")
	conv := wire.ConversationID("conv_" + wire.HashOf(l.cfg.Name, j.e.From, "request", string(j.raw)))
	in, err := l.newInbound(&j, conv, IntentRequest, wire.Obj(wire.TextField("action", "call"), wire.TextField("tool", name), wire.Field("arguments", arguments)))
	if err != nil {
		refuse(rpcParams, "the call cannot become a message: it is too large or nested too deeply, it has a number that no message can hold, or the id of its sender has a blank")
		return err
	}
	in.Records = []store.Change{l.records.rememberInContext("asked", string(conv), storedRequest{From: j.e.From, Envelope: j.e.ID, ID: id.JSON()}, keepSent)}
	in.Draw, in.Unattended = bridge.DrawToolCall, true // the result comes through the outbox
	return l.submit(ctx, &j.e, in)
}

// sendResponse answers the tool call of a conversation, or the request by which this node fulfilled the proposal of a
// conversation. It answers each request once.
func (l *Link) sendResponse(ctx context.Context, conv wire.ConversationID, payload wire.Value) error {
	a, ok := load[storedRequest](ctx, l.records, "asked", string(conv))
	if !ok {
		return nil
	}
	result := copyResult(wire.Obj(), payload)
	if result.Len() == 0 {
		return nil
	}
	id, err := wire.ParseForeign(a.ID, envelope.MaxDepth, envelope.MaxValues)
	if err != nil {
		return err
	}
	err = l.space.say(ctx, envelope.Draft{
		ID: "am-q-" + wire.HashOf(string(conv)), Kind: envelope.KindResponse, To: []string{a.From}, Correlation: []string{a.Envelope}, Payload: rpcAnswer(id, result),
	})
	if err == nil {
		l.records.apply(ctx, l.records.drop("asked", string(conv)))
	}
	return err
}

// answerExpired tells the senders of proposals and requests that nobody decided about them in time. The link tries
// again later if the space does not take an answer now.
func (l *Link) answerExpired(ctx context.Context) {
	fault := rpcError(rpcRefused, "the owner of this node did not decide in time")
	for rec, err := range store.AllRecords(ctx, l.records.store, nsLinks, l.cfg.Name+"/expired", time.Now()) {
		var conv wire.ConversationID
		if err = cmp.Or(err, json.Unmarshal(rec.Body, &conv)); err == nil {
			err = cmp.Or(l.reject(ctx, conv, "timeout"), l.sendResponse(ctx, conv, fault)) // one of them has nothing to do
		}
		if err != nil {
			if _, again := errors.AsType[*client.SendError](l.deliveryError(wholeSpace, err, time.Time{})); again {
				continue
			}
			l.log.Info("the end of a proposal or request did not reach the space", "err", err)
		}
		l.records.apply(ctx, l.records.drop("expired", string(conv)))
	}
}

// Handle implements [bridge.Handler]. The node may call it more than once for a message.
func (b *Bridge) Handle(ctx context.Context, c bridge.Call) (bridge.Reply, error) {
	l, peer, err := b.findLink(c.Address)
	if err != nil {
		return bridge.Reply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	switch action := c.Payload.GetStr("action"); {
	case c.Intent == IntentProposal && action == "propose":
		if !c.Approved {
			return bridge.Reply{Hold: "a participant of the space " + l.cfg.Name + " proposes this; approve it to send it as a request in your name"}, nil
		}
		return l.fulfill(ctx, c)
	case c.Intent == IntentRequest && action == "call":
		arguments, _ := c.Payload.Get("arguments")
		end := closePayload(l.runTool(ctx, peer, c.Payload.GetStr("tool"), arguments))
		return bridge.Reply{Payload: &end}, nil
	}
	return bridge.Reply{}, nil
}
