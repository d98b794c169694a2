package moltspeak

import (
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/websocket"
)

// helloTime is how long a stream may take until it is bound.
const helloTime = 10 * time.Second

// socket is an open stream.
type socket struct {
	conn  *websocket.Conn
	peer  string // that it is bound to; "" before that
	known bool
	since time.Time
	hello *time.Timer
}

// sockets are the open streams.
type sockets struct {
	mu   sync.Mutex
	all  map[*websocket.Conn]*socket
	down bool
	wait sync.WaitGroup
}

func newSockets() *sockets { return &sockets{all: make(map[*websocket.Conn]*socket)} }

// add takes a connection in. If too many are not bound, the one that waits longest gives way.
func (s *sockets) add(c *websocket.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return false
	}
	waiting, oldest := 0, (*socket)(nil)
	for _, o := range s.all {
		if o.peer != "" {
			continue
		}
		waiting++
		if oldest == nil || o.since.Before(oldest.since) {
			oldest = o
		}
	}
	if waiting >= unboundSockets {
		oldest.conn.Abort()
		delete(s.all, oldest.conn)
	}
	hello := time.AfterFunc(helloTime, func() { c.Close(websocket.CodeProtocol, "nothing bound the stream in time") })
	s.all[c] = &socket{conn: c, since: time.Now(), hello: hello}
	s.wait.Add(1)
	return true
}

// bind makes c a stream of peer. It is false where the peer, or its kind, has as many as it may.
func (s *sockets) bind(c *websocket.Conn, peer string, known bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.all[c]
	if it == nil {
		return false // it gave way
	}
	it.hello.Stop()
	same, kind := 0, 0
	for _, o := range s.all {
		if o.peer == peer {
			same++
		}
		if o.peer != "" && o.known == known {
			kind++
		}
	}
	bound := maxSockets - strangersSockets - unboundSockets
	if !known {
		bound = strangersSockets
	}
	if same >= socketsPerPeer || kind >= bound {
		return false
	}
	it.peer, it.known, it.since = peer, known, time.Now()
	return true
}

func (s *sockets) remove(c *websocket.Conn) {
	s.mu.Lock()
	if it := s.all[c]; it != nil {
		it.hello.Stop()
		delete(s.all, c)
	}
	s.mu.Unlock()
	s.wait.Done()
}

// push sends to the newest stream of a peer. Whether it arrives is not known: what is pushed is kept, too.
func (s *sockets) push(peer string, raw []byte) {
	s.mu.Lock()
	var newest *socket
	for _, o := range s.all {
		if o.peer == peer && (newest == nil || o.since.After(newest.since)) {
			newest = o
		}
	}
	s.mu.Unlock()
	if newest != nil {
		_ = newest.conn.Send(websocket.Text(raw)) // a closed one is no news
	}
}

// close ends all streams and waits for their readers.
func (s *sockets) close() {
	s.mu.Lock()
	s.down = true
	for c := range s.all {
		c.Close(websocket.CodeGoingAway, "")
	}
	s.mu.Unlock()
	s.wait.Wait()
}
