package moltspeak

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// resendWithin is how long after the first attempt we resend the same bytes: less than the time for which the peer
// accepts the timestamp in them. After that we sign the message with a new timestamp, and also with a new id, because
// MS-30 permits only one content under an id.
const resendWithin = 4 * time.Minute

const enveloped = true // our messages leave in an envelope, even if they are not encrypted

// Deliver implements [bridge.Transport].
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	address, err := bridge.ParseAddress(d.Address)
	if err != nil || address.Kind != Kind {
		return bridge.Delivered{}, fmt.Errorf("moltspeak: %q is not a MoltSpeak address", d.Address)
	}
	to, ok := message.ParseName(address.Peer)
	if !ok {
		return bridge.Delivered{}, errors.New("moltspeak: the name of a peer must be agent@org")
	}
	now := time.Now()
	target, err := b.targetOf(ctx, address, to, now)
	if err != nil {
		return bridge.Delivered{}, err
	}
	var state convState
	if _, _, err := store.ReadRecord(ctx, b.records, nsConversations, convKey(d.Address, string(d.Message.Conversation)), &state, now); err != nil {
		return bridge.Delivered{}, client.RetryLater(err)
	}
	draft, needed, err := newDraft(d, state)
	if err != nil || !needed {
		return bridge.Delivered{}, err
	}
	raw, err := b.prepare(ctx, d, draft, target, now)
	if err != nil {
		return bridge.Delivered{}, err
	}
	if target.endpoint == "" {
		err = &client.SendError{Retry: true, Cause: fmt.Errorf("%s has named no endpoint, so it cannot be called; add a link with its url", to.Name())}
	} else {
		err = b.send(ctx, target, raw, state.Boxed)
	}
	// The peer can still get an answer by repeating its message state.Re, or over its WebSocket.
	cannotPost := target.endpoint == "" || errors.Is(err, errNotCallable) || errors.Is(err, errNoKey)
	if cannotPost && draft.Op == message.OpRespond && state.Re != "" {
		err = b.keepAnswer(ctx, to, state.Re, state.Boxed, raw, now)
	}
	if err != nil {
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Queued: true}, client.RetryLater(recordAnswer(ctx, b.records, d, state, now))
}

// Screen implements [bridge.Screener]: no message leaves with personal data that no consent covers.
func (b *Bridge) Screen(ctx context.Context, address bridge.Address, payload wire.Value) error {
	to, ok := message.ParseName(address.Peer)
	if !ok {
		return nil // Deliver refuses it
	}
	if _, e := b.screen(ctx, to, payload.Without("metadata"), "", time.Now()); e != nil && e.Code == message.CodeConsent {
		return blockedError(e, to)
	}
	return nil
}

// target is a peer to which messages of ours go.
type target struct {
	agent    message.Agent
	address  bridge.Address
	endpoint string       // "" if the peer cannot be called
	reach    client.Reach // the addresses at which the endpoint may be
}

// targetOf returns a peer with the endpoint from its link, or else from its signed messages. The error says why a
// delivery to it must wait or fail.
func (b *Bridge) targetOf(ctx context.Context, a bridge.Address, agent message.Agent, now time.Time) (to target, err error) {
	if l, ok := b.links.Find(a.Link); ok {
		to, err = targetBehind(l, agent)
		return to, cmp.Or(err, errorIfDown(l))
	}
	to = target{agent: agent, address: a, reach: client.StrangersReach(b.cfg.Local)}
	if a.Link != InboundLink {
		return to, fmt.Errorf("moltspeak: there is no link %s", a.Link)
	}
	p, known, err := b.pins.get(ctx, agent.Name(), now)
	if err != nil || !known || p.Endpoint == "" {
		return to, client.RetryLater(err)
	}
	to.endpoint, err = message.Endpoint(p.Endpoint)
	return to, err
}

// targetBehind returns the agent with the endpoint of a link.
func targetBehind(l *bridge.CalledLink, agent message.Agent) (to target, err error) {
	to = target{agent: agent, address: bridge.Address{Kind: Kind, Link: l.Name, Peer: agent.Name()}, reach: client.Owner}
	to.endpoint, err = message.Endpoint(l.URL)
	return to, err
}

// errNoKey means that a message must be encrypted, but the peer has no key.
var errNoKey = errors.New("moltspeak: the peer has shown no encryption key")

// errNotCallable means that the address guard forbids a call to the endpoint that a peer named.
var errNotCallable = errors.New("moltspeak: the endpoint of the peer may not be called")

// prepare returns the signed bytes of a draft: those of a recent attempt with the same consent, or new ones with the
// class and consent that its content needs.
func (b *Bridge) prepare(ctx context.Context, d bridge.Delivery, draft message.Draft, to target, now time.Time) ([]byte, error) {
	key := "out " + wire.HashOf(d.ID)
	var sent sentMessage
	_, ok, err := store.ReadRecord(ctx, b.records, nsSent, key, &sent, now)
	if err != nil {
		return nil, client.RetryLater(err)
	}
	// Each attempt is screened, because the owner may have revoked the consent meanwhile.
	out, e := b.screen(ctx, to.agent, draft.P, key, now)
	if e != nil {
		if e.Code == message.CodeInternal {
			return nil, client.RetryLater(e)
		}
		return nil, blockedError(e, to.agent)
	}
	if !ok || now.Sub(sent.Sent) > resendWithin || sent.Proof != out.proof() {
		class := out.class.ForAnswer(draft.Class)
		draft.ID, draft.Time, draft.To, draft.Class, draft.PII = newID(), now, to.agent, class, out.meta
		draft.Ext = urlOf(b).ext(to.endpoint)
		sent = sentMessage{Conv: string(d.Message.Conversation), Address: d.Address, Intent: string(d.Message.Intent), Raw: b.signTree(draft).JSON(), Sent: now.UTC(), Proof: out.proof()}
		if err := storeSent(ctx, b.records, sent, key, draft, to.agent, out.uses, now); err != nil {
			b.cfg.Logger.WarnContext(ctx, "moltspeak: cannot store one of our messages", "peer", to.agent.Name(), "err", err)
			return nil, client.RetryLater(err)
		}
	}
	return sent.Raw, nil
}

// ownURL is the URL of our endpoint, or "" if we have none.
type ownURL string

func urlOf(b *Bridge) ownURL {
	if !b.Serving() {
		return ""
	}
	return ownURL(b.cfg.URL)
}

// ext returns the member ext of a message to the peer at endpoint. It names our endpoint, or is null if that peer
// cannot call us.
func (u ownURL) ext(endpoint string) wire.Value {
	if url := u.reachableFrom(endpoint); url != "" {
		return wire.Obj(wire.Field("agentmesh.endpoint", wire.Obj(wire.TextField("url", url))))
	}
	return wire.Value{}
}

// reachableFrom returns the URL of our endpoint for the peer at endpoint, or "" if that peer cannot call it. A URL on
// loopback is of use only to peers on this machine. If endpoint is empty, the peer may be anywhere.
func (u ownURL) reachableFrom(endpoint string) string {
	if isLoopback(string(u)) && !isLoopback(endpoint) {
		return ""
	}
	return string(u)
}

func isLoopback(target string) bool {
	u, err := url.Parse(target)
	return err == nil && httpapi.LoopbackHost(u.Host)
}

// storeSent stores one of our messages before it is sent, so that its answer finds the conversation. uses are the
// changes that use up the consent of the message.
func storeSent(ctx context.Context, records store.Records, sent sentMessage, key string, draft message.Draft, to message.Agent, uses []store.Change, now time.Time) error {
	record := func(key string, sent sentMessage, keep time.Duration) store.Change {
		return store.Change{IfRev: store.Any, Record: store.Record{NS: nsSent, Key: key, Body: wire.MustMarshal(sent), Expires: now.Add(keep)}}
	}
	answerable := sent
	answerable.Raw = nil
	const keepBytes = time.Hour // longer than resendWithin
	changes := append(uses, record(key, sent, keepBytes), record(draft.ID, answerable, keepConversations))
	if id := draft.P.GetStr("task_id"); draft.Op == message.OpTask && id != "" {
		changes = append(changes, record("task "+wire.HashOf(to.Name(), id), answerable, keepConversations))
	}
	return records.Apply(ctx, changes, now)
}

// recordAnswer stores how a message that we sent changes the state of the conversation, if it answers the peer.
func recordAnswer(ctx context.Context, records store.Records, d bridge.Delivery, state convState, now time.Time) error {
	if state.Re == "" {
		return nil
	}
	return updateConversation(ctx, records, state, now, func(state *convState) {
		state.TaskState = "running"
		switch d.Message.Action() {
		case wire.ActionClose:
			state.Done, state.TaskState = true, "completed"
			if d.Message.Payload.GetStr("status") == "failed" {
				state.TaskState = "failed"
			}
		case wire.ActionPending, wire.ActionReceived:
			state.TaskState = "pending"
		default: // only a close ends a task
			state.Done = state.Done || state.Op != message.OpTask
		}
	})
}

// keepAnswer handles an answer that we cannot post. It stores the answer in the replay record of the peer's message,
// whose id is re, so that the peer gets the answer by repeating the message, and sends it over an open WebSocket of the
// peer. If the replay record has expired and no WebSocket is open, the error wraps a *client.SendError that permits
// another attempt. boxed is set if the peer's message came encrypted.
func (b *Bridge) keepAnswer(ctx context.Context, to message.Agent, re string, boxed bool, raw []byte, now time.Time) error {
	var s replayRecord
	m := message.Message{From: to, ID: re}
	rev, ok, err := store.ReadRecord(ctx, b.records, nsReplays, replayKey(to, re), &s, now)
	if err != nil {
		return client.RetryLater(err)
	}
	pushed := false
	if body, err := b.packFor(ctx, to, b.pins.address(to).Link, raw, boxed); err == nil {
		p, _, err := b.pins.get(ctx, to.Name(), now)
		pushed = err == nil && b.sockets.push(p.identity(), body)
	}
	switch {
	case !ok && pushed:
		return nil
	case !ok:
		return fmt.Errorf("moltspeak: the peer can no longer fetch the answer, and has no open WebSocket: %w", &client.SendError{Retry: true})
	}
	s.Reply, s.Status = raw, http.StatusOK
	const known = true // keep the reply for a stranger as well, whatever its size
	return client.RetryLater(b.records.Apply(ctx, []store.Change{replayChange(m, s, known, rev, now)}, now))
}

// send posts one message, handles the answer, and records the result for the link.
func (b *Bridge) send(ctx context.Context, to target, raw []byte, boxed bool) error {
	began := time.Now()
	err := b.sendOnce(ctx, to, raw, boxed)
	if !errors.Is(err, errNoKey) { // errNoKey: no call was made
		b.links.record(to.address.Link, began, err)
	}
	return err
}

// sendOnce is send without the record of the result.
func (b *Bridge) sendOnce(ctx context.Context, to target, raw []byte, boxed bool) error {
	reply, err := b.post(ctx, to, raw, boxed)
	if err != nil || reply == nil {
		return err
	}
	c := &request{ctx: ctx, now: time.Now(), packet: *reply, answersCall: true}
	if e := b.checkShape(c); e != nil {
		return &client.SendError{Retry: true, Processed: true, Status: http.StatusBadGateway, Cause: fmt.Errorf("read the answer: %w", e)}
	}
	if c.m.From.Name() != to.agent.Name() {
		return errors.New("moltspeak: the answer is from another agent")
	}
	for _, check := range []func(*request) *message.Error{b.checkStanding, b.checkSender, b.checkTime} {
		if e := check(c); e != nil {
			return fmt.Errorf("moltspeak: the answer is not accepted: %w", e)
		}
	}
	if f, failed := c.body.(message.Fault); failed && f.Code != message.CodeTaskFailed { // a failed task is an answer
		again := f.Recoverable && f.Code.IsTemporary()
		return fmt.Errorf("moltspeak: %w: %w", f, &client.SendError{Retry: again, Processed: true, After: f.Delay, Status: f.Wire().Status, Refusal: f.Wire()})
	}
	if !c.m.Op.IsAnswer() {
		return nil
	}
	e := b.checkContent(c)
	switch {
	case e != nil: // the peer accepted our message, so the owner must not send it again
		return fmt.Errorf("moltspeak: the answer is not accepted: %w: %w", client.ErrReplyUnverified, e)
	case c.m.Class == message.Secret:
		const isRepeat = false // not looked up: handleSecret cannot store a repeat
		_, e = b.handleSecret(c, isRepeat)
	default:
		_, e = b.receiveReply(c)
	}
	if e != nil && !errors.Is(e, wire.ErrConversationClosed) {
		b.cfg.Logger.WarnContext(ctx, "moltspeak: an answer was not accepted", "peer", to.agent.Name(), "err", e)
	}
	return nil
}

// packFor returns one of our signed messages as bytes for the peer, encrypted if its class, its link or an encrypted
// request requires that. A confidential message may be plain only for a peer in PlainConf that has no key.
func (b *Bridge) packFor(ctx context.Context, to message.Agent, link string, raw []byte, boxed bool) ([]byte, error) {
	tree, err := wire.ParseForeign(raw, message.MaxNesting, message.MaxValues)
	if err != nil {
		return nil, err
	}
	class := message.ParseClass(tree.GetStr("cls"))
	if !boxed && !class.IsBoxed() && (!b.links.encryptsAlways(link) || tree.GetStr("op") == string(message.OpHello)) {
		return message.Wrap(tree, enveloped), nil
	}
	p, _, err := b.pins.get(ctx, to.Name(), time.Now())
	if err != nil {
		return nil, client.RetryLater(err)
	}
	if point, ok := message.ParsePoint(p.EncKey); ok {
		return message.Seal(tree, b.cfg.Box, point), nil
	}
	if class == message.Confidential && !boxed && slices.Contains(b.cfg.PlainConf, to.Name()) {
		return message.Wrap(tree, enveloped), nil
	}
	return nil, errNoKey
}

// post encrypts a message if necessary, and sends it. It returns a nil packet if the answer is empty (MS-45).
func (b *Bridge) post(ctx context.Context, to target, raw []byte, boxed bool) (*message.Packet, error) {
	body, err := b.packFor(ctx, to.agent, to.address.Link, raw, boxed)
	if err != nil {
		return nil, err
	}
	var token client.Credential
	if l, ok := b.links.Find(to.address.Link); ok {
		token = l.Token
	}
	return b.transmit(ctx, to.endpoint, to.reach, token, body)
}

// transmit posts body to endpoint and reads the packet in the answer, or nil if the answer is empty.
func (b *Bridge) transmit(ctx context.Context, endpoint string, reach client.Reach, token client.Credential, body []byte) (*message.Packet, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+string(token))
	}
	resp, err := b.cfg.HTTP.Do(ctx, reach, req)
	if err != nil {
		if _, refused := errors.AsType[*client.GuardError](err); refused {
			return nil, fmt.Errorf("%w: %w", errNotCallable, err)
		}
		return nil, client.RetryLater(err)
	}
	answer, err := client.ReadAll(resp, message.MaxMessage+message.MaxWrapping)
	if err != nil {
		return nil, &client.SendError{Retry: true, Processed: true, Status: resp.StatusCode, Cause: err}
	}
	if text := strings.TrimSpace(string(answer)); resp.StatusCode < 300 && (text == "" || text == "{}") {
		return nil, nil
	}
	p, e := message.ReadPacket(answer, b.cfg.Box)
	if e != nil {
		return nil, &client.SendError{Retry: client.IsRetryStatus(resp.StatusCode), Processed: true, Status: resp.StatusCode, Cause: fmt.Errorf("the answer with HTTP %d is not a packet: %w", resp.StatusCode, e)}
	}
	return &p, nil
}

// callback is an answer to a request for consent, delivered without the outbox. Its party is the name of the peer.
type callback struct {
	bridge.DueRow
	Re    string        `json:"re"` // the id of the request
	P     wire.Value    `json:"p"`  // the payload of the answer
	Class message.Class `json:"cls"`
	Boxed bool          `json:"boxed,omitempty"` // the request came encrypted, so the answer must be encrypted
	Tries int           `json:"tries,omitempty"`
	Until time.Time     `json:"until"`
}

// keepCallbacks is how long a peer that cannot be reached may still get the answer to its request for consent.
const keepCallbacks = keepConfidential

func (cb callback) change(rev store.Rev) store.Change {
	return store.Change{IfRev: rev, Record: cb.Schedule(store.Record{
		NS: nsCallbacks, Key: wire.HashOf(cb.Party, cb.Re), Body: wire.MustMarshal(cb), Expires: cb.Until,
	}, time.Now())}
}

// answerConsent delivers a callback, and stores when to try again if that fails.
func (b *Bridge) answerConsent(ctx context.Context, rec store.Record) error {
	var cb callback
	if err := json.Unmarshal(rec.Body, &cb); err != nil {
		return err
	}
	err := b.deliverCallback(ctx, cb)
	if err != nil {
		b.cfg.Logger.InfoContext(ctx, "moltspeak: a peer did not get the answer to its request for consent", "peer", cb.Party, "tries", cb.Tries, "err", err)
	}
	if sendErr, ok := errors.AsType[*client.SendError](err); ok && sendErr.Retry {
		cb.Due = time.Now().Add(bridge.PauseBefore(cb.Tries, time.Hour))
		cb.Tries++
		return b.records.Apply(ctx, []store.Change{cb.change(rec.Rev)}, time.Now())
	}
	return b.records.Apply(ctx, bridge.Forget(rec), time.Now())
}

// deliverCallback posts a callback to its peer. A peer that cannot be called gets it by repeating its request, or over
// its open WebSocket.
func (b *Bridge) deliverCallback(ctx context.Context, cb callback) error {
	now := time.Now()
	to, ok := message.ParseName(cb.Party)
	if !ok {
		return errors.New("the question names no peer")
	}
	p, _, err := b.pins.get(ctx, to.Name(), now)
	if err != nil {
		return client.RetryLater(err)
	}
	d := message.Draft{ID: newID(), Re: cb.Re, Op: message.OpConsentResponse, Time: now, To: to, P: cb.P, Class: cb.Class}
	if b.links.usesCoreOnly(to, p) {
		d = d.ToCore()
	}
	raw := b.signTree(d).JSON()
	target, err := b.targetOf(ctx, b.pins.address(to), to, now)
	var keepErr error
	if cb.Tries == 0 || target.endpoint == "" { // otherwise the first attempt has stored the answer
		keepErr = b.keepAnswer(ctx, to, cb.Re, cb.Boxed, raw, now)
	}
	if err != nil || target.endpoint == "" {
		return cmp.Or(err, keepErr)
	}
	return b.sendOnce(ctx, target, raw, cb.Boxed)
}
