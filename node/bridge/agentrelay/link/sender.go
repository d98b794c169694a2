package link

import (
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/websocket"
)

const (
	maxUnsent    = 1000 // answers that wait; peers, which a relay shows by id alone, take turns
	ownPerMinute = 90   // AR-53: below what a relay allows
	ownPerHour   = 950
)

// errDown: there is no connection to write to.
var errDown = errors.New("the link is not connected")

// sender writes to the connection of a link, within the budget of what a relay accepts.
type sender struct {
	budget *rate.Windows // of all frames that we send

	mu      sync.Mutex
	conn    *websocket.Conn
	answers *rate.Windows       // of answers in the budget, so that peers who make us answer leave room for what we have to say
	unsent  *rate.Turns[[]byte] // answers that wait for the connection or the budget
	resume  *time.Timer         // when they go on; nil: they wait for the connection, or there are none
}

func newSender() *sender {
	return &sender{
		budget: rate.NewWindows(ownPerMinute, ownPerHour), answers: rate.NewWindows(ownPerMinute*2/3, ownPerHour*2/3),
		unsent: rate.NewTurns[[]byte](maxUnsent),
	}
}

// up makes conn the connection that is written to, and sends the answers that waited for it.
func (s *sender) up(conn *websocket.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	s.drain()
}

func (s *sender) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if s.resume != nil {
		s.resume.Stop()
		s.resume = nil
	}
}

// write sends a frame now. That it was written is all that ARC tells: nobody acknowledges it (AR-53).
func (s *sender) write(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return errDown
	}
	return s.conn.Send(websocket.Text(data))
}

// answer sends a frame to a peer as soon as connection and budget allow: nobody else would send it again.
func (s *sender) answer(peer string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent.Add(peer, data)
	s.drain()
}

// drain sends the answers that wait. The caller holds s.mu.
func (s *sender) drain() {
	for s.unsent.Len() > 0 && s.conn != nil && s.resume == nil {
		now := time.Now()
		wait := s.answers.Peek(now)
		if wait == 0 {
			wait = s.budget.Take(now)
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
		s.answers.Take(now)
		if s.conn.Send(websocket.Text(s.unsent.First())) != nil {
			return // the next connection goes on
		}
		s.unsent.RemoveFirst()
	}
}
