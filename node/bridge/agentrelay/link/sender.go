package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxUnsent    = 1000 // answers that may wait in the queue, which serves the peers in turn
	ownPerMinute = 90   // AR-53: below what a relay allows
	ownPerHour   = 950
	maxUnread    = 4 // messages of the outbox that the relay has not read yet
)

var errDown = errors.New("the link is not connected")

// sender sends over the connection of a link, within the rate that a relay accepts.
type sender struct {
	budget *rate.Windows   // of all frames that the link sends
	unread *waiting.Places // one for each message of the outbox that the relay has not read yet

	mu   sync.Mutex
	conn *websocket.Conn
	// answers is the part of the budget that answers to peers may use, so that they leave a third for other messages.
	answers *rate.Windows
	unsent  *rate.FairQueue[[]byte] // answers that bypass the outbox, and wait for the connection or the budget
	resume  *time.Timer             // sends them when the budget allows; nil if nothing waits for the budget
}

func newSender() *sender {
	return &sender{
		budget: rate.NewWindows(ownPerMinute, ownPerHour), answers: rate.NewWindows(ownPerMinute*2/3, ownPerHour*2/3),
		unsent: rate.NewFairQueue[[]byte](maxUnsent), unread: waiting.NewPlaces(maxUnread, maxUnread),
	}
}

// setConn makes conn the connection of the sender, and sends the answers that waited for a connection.
func (s *sender) setConn(conn *websocket.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	s.drain()
}

func (s *sender) clearConn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if s.resume != nil {
		s.resume.Stop()
		s.resume = nil
	}
}

// reserve charges a frame to the budget, and an answer also to the part for answers. If the budget is used up, reserve
// charges nothing and returns how long the frame must wait. cancel takes the charge back. Without a connection, the
// error is errDown.
func (s *sender) reserve(isAnswer bool) (cancel func(), wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserveLocked(isAnswer)
}

func (s *sender) reserveLocked(isAnswer bool) (cancel func(), wait time.Duration, err error) {
	if s.conn == nil {
		return nil, 0, errDown
	}
	now := time.Now()
	if isAnswer {
		wait = s.answers.Peek(now)
	}
	if wait = max(wait, s.budget.Peek(now)); wait > 0 {
		return nil, wait, nil
	}
	s.budget.Take(now)
	if isAnswer {
		s.answers.Take(now)
	}
	return func() {
		s.budget.Return(now)
		if isAnswer {
			s.answers.Return(now)
		}
	}, 0, nil
}

// write queues a frame on the connection, and returns the connection. The caller has reserved the budget for the
// frame.
func (s *sender) write(data []byte) (*websocket.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil, errDown
	}
	return s.conn, s.conn.Send(websocket.Text(data))
}

// send charges a frame that is not an answer to the budget and queues it on the connection, or returns how long the
// frame must wait.
func (s *sender) send(data []byte) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const isAnswer = false
	return s.sendLocked(data, isAnswer)
}

func (s *sender) sendLocked(data []byte, isAnswer bool) (time.Duration, error) {
	cancel, wait, err := s.reserveLocked(isAnswer)
	if wait > 0 || err != nil {
		return wait, err
	}
	if err := s.conn.Send(websocket.Text(data)); err != nil {
		cancel()
		return 0, err
	}
	return 0, nil
}

// answer sends a frame to a peer, or queues it until connection and budget allow. If the process ends, the queue is
// lost: the sender of a tunneled message sends it again, no peer depends on the notice that the owner is asked first,
// and the reply to an answer only confirms the end of a conversation.
func (s *sender) answer(peer string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent.Add(peer, data)
	s.drain()
}

// drain sends the waiting answers. The caller holds s.mu.
func (s *sender) drain() {
	for s.unsent.Len() > 0 && s.resume == nil {
		const isAnswer = true
		wait, err := s.sendLocked(s.unsent.First(), isAnswer)
		if err != nil {
			return // the next connection sends it
		}
		if wait > 0 {
			s.resume = time.AfterFunc(wait, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.resume = nil
				s.drain()
			})
			return
		}
		s.unsent.RemoveFirst()
	}
}

// errUndeliverable means that another attempt does not help.
var errUndeliverable = errors.New("the message cannot be delivered")

// undeliverableError says why a message cannot be delivered. It matches errUndeliverable.
type undeliverableError struct{ reason string }

func (e undeliverableError) Error() string        { return e.reason }
func (e undeliverableError) Is(target error) bool { return target == errUndeliverable }

// These texts tell the owner why a message waits.
const (
	reasonStore  = "the link could not read or store the state of the conversation"
	reasonBudget = "the link waits because of the relay's rate limit"
	reasonUnread = "the link waits until the relay has read earlier messages"
)

// retryLater returns an error that makes the outbox try again, with the reason for the owner.
func retryLater(after time.Duration, reason string) *client.SendError {
	return &client.SendError{Retry: true, After: after, Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(reason)}
}

// holdBack returns the error of retryLater for a message that a limit of the link holds back. It does not count as an
// attempt.
func holdBack(after time.Duration, reason string) *client.SendError {
	e := retryLater(after, reason)
	e.Unsent = true
	return e
}

func (l *Link) offlineReason() string {
	s := l.Status()
	switch s.State {
	case bridge.LinkDown:
		return "the link " + s.Name + " is down: " + s.Error
	case bridge.LinkUp:
		return "the connection of the link " + s.Name + " ended or gave no sign of life"
	}
	return "the link " + s.Name + " is not connected"
}

// sendReply sends the node's immediate reply to a message, without using the outbox.
func (l *Link) sendReply(ctx context.Context, peer string, m wire.Message) {
	data, changes, err := l.encode(ctx, peer, m)
	if err != nil {
		l.log.Error("cannot encode the reply to a message", "peer", peer, "err", err)
		return
	}
	if data == nil {
		return
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		l.log.Error("cannot store the state of a conversation", "err", err)
	}
	l.sender.answer(peer, data)
}

// explainWait returns the error for the outbox if a frame must wait, or if the connection did not take it.
func (l *Link) explainWait(wait time.Duration, err error) error {
	switch {
	case err != nil:
		e := retryLater(0, l.offlineReason())
		e.Awaits = l.address("").String()
		return e
	case wait > 0:
		return holdBack(wait+rand.N(wait/4+time.Second), reasonBudget)
	}
	return nil
}

// Deliver sends a message of the outbox to a peer. It succeeds when the relay has read the frame, or at once if nothing
// is to be sent. Only a reply proves that the message arrived (AR-53).
func (l *Link) Deliver(ctx context.Context, to string, d bridge.Delivery) (bridge.Delivered, error) {
	if !frame.ValidAgentID(to) || to == frame.RelayID {
		return bridge.Delivered{}, undeliverableError{"the address does not name an agent of a relay"}
	}
	data, changes, err := l.encode(ctx, to, d.Message)
	switch {
	case errors.Is(err, errUndeliverable):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, retryLater(0, reasonStore)
	case data == nil:
		return bridge.Delivered{Queued: true}, nil
	}
	leave, ok := l.sender.unread.Enter(to)
	if !ok {
		e := holdBack(0, reasonUnread)
		e.Awaits = l.address("").String()
		return bridge.Delivered{}, e
	}
	isAnswer := conversations.AnswersIn(d.Message.Payload) != ""
	err = l.sendAndConfirm(ctx, data, changes, isAnswer)
	leave()
	if err != nil {
		return bridge.Delivered{}, err
	}
	l.cfg.Mesh.Reachable(l.address("")) // the place is free: a message that found none may use it
	return bridge.Delivered{Queued: true}, nil
}

// sendAndConfirm stores the changes, sends a frame, and waits until the relay has read it.
func (l *Link) sendAndConfirm(ctx context.Context, data []byte, changes []store.Change, isAnswer bool) error {
	// The state of the conversation decides what the next attempt sends, so it must not change before the budget lets
	// the frame leave.
	cancel, wait, err := l.sender.reserve(isAnswer)
	if err := l.explainWait(wait, err); err != nil {
		return err
	}
	if err := l.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		cancel()
		return retryLater(0, reasonStore)
	}
	conn, err := l.sender.write(data)
	if err != nil {
		cancel()
		return l.explainWait(0, err)
	}
	// ARC acknowledges no frame. Without a sign of life the connection may be broken, and the frame lost (AR-53). The
	// next connection does not send it at once, because the relay may have closed this one because of the frame.
	if conn.Confirm(ctx, readPatience) != nil {
		return retryLater(0, l.offlineReason())
	}
	return nil
}

// encode returns the frame of a message (nil if nothing is to be sent), and the changes that store the conversation.
func (l *Link) encode(ctx context.Context, peer string, m wire.Message) ([]byte, []store.Change, error) {
	now := time.Now()
	current, err := l.convStore.read(ctx, l.convStore.key(peer, m.Conversation), now)
	if err != nil {
		return nil, nil, err
	}
	// base is the state of the conversation that decides what m answers.
	base, err := l.convStore.readBase(ctx, peer, m, current, now)
	if err != nil {
		return nil, nil, err
	}
	out, err := fromMesh(m.Intent, m.Payload, base.answeringTo(m.ID))
	if err != nil {
		return nil, nil, undeliverableError{err.Error()}
	}
	isPending := m.Action() == wire.ActionPending
	if isPending && !current.Mesh {
		if l.cfg.Link.Options[optPending] == "false" {
			return nil, nil, nil
		}
		out = outgoing{kind: "thought", payload: wire.Text("Thank you. My owner is asked first; an answer may come later."), isReply: true}
	}
	if out.silent {
		return nil, nil, nil
	}
	ref := ""
	switch {
	case out.isReply:
		ref = base.Ref
	case out.expectsAnswer():
		ref = string(m.ID)
	}
	next := current
	next.Conv, next.Asked, next.LastOurs = m.Conversation, current.Asked || out.kind == "question", !isPending || current.LastOurs
	if out.kind == "answer" && base.Ref == current.Ref { // the peer has not written since
		next.Answer = m.ID // the next message of the node is not an answer
	}
	data := out.encode(peer, ref, m.Conversation, m.ID)
	if len(data) > frame.MaxSize {
		return nil, nil, undeliverableError{"the message has more than the 64 KB that a relay takes"}
	}
	changes := l.convStore.changes(peer, next, "", []string{string(m.ID), ref}, now)
	return data, append(changes, l.convStore.putBase(peer, m, base, now)), nil
}
