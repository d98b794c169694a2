package link

import (
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
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
