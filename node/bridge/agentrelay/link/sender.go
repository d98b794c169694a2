package link

import (
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/websocket"
)

const (
	maxUnsent    = 1000 // answers that wait; the peers take turns
	ownPerMinute = 90   // AR-53: below what a relay allows
	ownPerHour   = 950
)

var errDown = errors.New("the link is not connected")

// sender sends over the connection of a link, within the rate that a relay accepts.
type sender struct {
	budget *rate.Windows // of all frames that the link sends

	mu      sync.Mutex
	conn    *websocket.Conn
	answers *rate.Windows           // the part of the budget for answers and replies; the rest is for other messages of the owner
	unsent  *rate.FairQueue[[]byte] // immediate answers that wait for the connection or the budget
	resume  *time.Timer             // sends them when the budget allows; nil if nothing waits for the budget
}

func newSender() *sender {
	return &sender{
		budget: rate.NewWindows(ownPerMinute, ownPerHour), answers: rate.NewWindows(ownPerMinute*2/3, ownPerHour*2/3),
		unsent: rate.NewFairQueue[[]byte](maxUnsent),
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

// check returns how long a frame must wait for the budget, and an answer also for its part of the budget. Without a
// connection, the error is errDown.
func (s *sender) check(isAnswer bool) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked(isAnswer)
}

func (s *sender) checkLocked(isAnswer bool) (wait time.Duration, err error) {
	if s.conn == nil {
		return 0, errDown
	}
	now := time.Now()
	if isAnswer {
		wait = s.answers.Peek(now)
	}
	return max(wait, s.budget.Peek(now)), nil
}

// send queues a frame on the connection, and charges it to the budget, or returns how long it must wait. The frame may be
// lost with the connection, and ARC acknowledges no frame, so a wait of 0 does not mean that the frame arrived (AR-53).
func (s *sender) send(data []byte, isAnswer bool) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sendLocked(data, isAnswer)
}

func (s *sender) sendLocked(data []byte, isAnswer bool) (time.Duration, error) {
	if wait, err := s.checkLocked(isAnswer); wait > 0 || err != nil {
		return wait, err
	}
	if err := s.conn.Send(websocket.Text(data)); err != nil {
		return 0, err
	}
	now := time.Now()
	s.budget.Take(now)
	if isAnswer {
		s.answers.Take(now)
	}
	return 0, nil
}

// answer sends a frame to a peer, or queues it until connection and budget allow. If the process ends, the queue is
// lost: the sender of a tunneled message asks again, a pending notice is only a hint, and a reply to an answer belongs
// to a conversation that has ended.
func (s *sender) answer(peer string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent.Add(peer, data)
	s.drain()
}

// drain sends the waiting answers. The caller holds s.mu.
func (s *sender) drain() {
	for s.unsent.Len() > 0 && s.resume == nil {
		wait, err := s.sendLocked(s.unsent.First(), true)
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
