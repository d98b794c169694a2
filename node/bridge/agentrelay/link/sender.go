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

func (s *sender) isConnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// write queues a frame on the connection. The frame may be lost with the connection, and ARC acknowledges no frame, so
// nil does not mean that the frame arrived (AR-53).
func (s *sender) write(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return errDown
	}
	return s.conn.Send(websocket.Text(data))
}

// charge charges a frame to the budget, and an answer also to the part for answers. If the frame must wait, charge
// charges nothing and returns how long.
func (s *sender) charge(isAnswer bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chargeLocked(isAnswer)
}

func (s *sender) chargeLocked(isAnswer bool) time.Duration {
	now := time.Now()
	if isAnswer {
		if wait := s.answers.Peek(now); wait > 0 {
			return wait
		}
	}
	wait := s.budget.Take(now)
	if isAnswer && wait == 0 {
		s.answers.Take(now)
	}
	return wait
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
	for s.unsent.Len() > 0 && s.conn != nil && s.resume == nil {
		if wait := s.chargeLocked(true); wait > 0 {
			s.resume = time.AfterFunc(wait, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.resume = nil
				s.drain()
			})
			return
		}
		if s.conn.Send(websocket.Text(s.unsent.First())) != nil {
			return // the next connection sends it
		}
		s.unsent.RemoveFirst()
	}
}
