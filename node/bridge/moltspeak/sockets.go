package moltspeak

import (
	"maps"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// helloTime is how long a WebSocket may stay open before it is bound to a peer.
const helloTime = 10 * time.Second

// stopPatience is how long a bridge that stops waits until its WebSockets have closed.
const stopPatience = 5 * time.Second

// socket is an open WebSocket.
type socket struct {
	conn  *websocket.Conn
	peer  string      // the identity of the peer to which it is bound; "" if it is not bound
	known bool        // the peer is a known peer, not a stranger
	since time.Time   // when it was opened or, if it is bound, when it was bound
	hello *time.Timer // closes the connection if it is not bound in time

	sources []rate.Source // the client's address and networks, for rate limits
}

// sockets holds the open WebSockets.
type sockets struct {
	group websocket.Group // also those that are closing

	mu  sync.Mutex
	all map[*websocket.Conn]*socket
}

func newSockets() *sockets { return &sockets{all: make(map[*websocket.Conn]*socket)} }

// add registers a connection, which is not bound yet. If too many connections are not bound, it closes the oldest one
// of the source that has most of them. While the bridge stops, add returns false.
func (s *sockets) add(c *websocket.Conn, sources []rate.Source) bool {
	if s.group.Enter(c, 2*maxSockets) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := func(o *socket) bool { return o.peer == "" }
	if s.count(waiting) >= unboundSockets {
		newestFirst := func(a, b *socket) int { return b.since.Compare(a.since) }
		table := rate.FairTableOf(s.all, newestFirst, func(o *socket) ([]rate.Source, bool) { return o.sources, waiting(o) })
		displaced, ok := table.FindDisplaceable(sources)
		if !ok {
			displaced, _ = table.FindHeaviest()
		}
		displaced.Abort()
		delete(s.all, displaced)
	}
	hello := time.AfterFunc(helloTime, func() { c.Close(websocket.CodeProtocol, "the WebSocket was not bound to a sender in time") })
	s.all[c] = &socket{conn: c, sources: sources, since: time.Now(), hello: hello}
	return true
}

// bind binds c to a peer. It returns false if the peer has too many connections, or if known peers together have too
// many. If strangers together have too many, bind closes a connection of another stranger whose source has more
// (AM-42), or returns false if it finds none.
func (s *sockets) bind(c *websocket.Conn, peer string, known bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sock := s.all[c]
	if sock == nil {
		return false // c was closed to make room
	}
	sock.hello.Stop()
	isSimilar := func(o *socket) bool { return o.peer != "" && o.known == known } // of known peers, or of strangers
	limit := maxSockets - strangersSockets - unboundSockets
	if !known {
		limit = strangersSockets
	}
	if s.count(func(o *socket) bool { return o.peer == peer }) >= socketsPerPeer {
		return false
	}
	if s.count(isSimilar) >= limit {
		oldestFirst := func(a, b *socket) int { return a.since.Compare(b.since) }
		table := rate.FairTableOf(s.all, oldestFirst, func(o *socket) ([]rate.Source, bool) { return o.sources, isSimilar(o) })
		displaced, ok := table.FindDisplaceable(sock.sources)
		if known || !ok {
			return false
		}
		displaced.Close(websocket.CodeTryLater, "too many WebSockets")
		delete(s.all, displaced)
	}
	sock.peer, sock.known, sock.since = peer, known, time.Now()
	return true
}

func (s *sockets) count(which func(*socket) bool) int { return count(maps.Values(s.all), which) }

func (s *sockets) remove(c *websocket.Conn) {
	s.mu.Lock()
	if sock := s.all[c]; sock != nil {
		sock.hello.Stop()
		delete(s.all, c)
	}
	s.mu.Unlock()
	s.group.Leave(c)
}

// push queues raw on the newest connection of the peer with this identity. It returns false if the peer has no
// connection, or if the newest one is closing or has a full queue. The message may still get lost, so the caller also
// stores it if it can.
func (s *sockets) push(peer string, raw []byte) bool {
	s.mu.Lock()
	var newest *socket
	for _, o := range s.all {
		if o.peer == peer && (newest == nil || o.since.After(newest.since)) {
			newest = o
		}
	}
	s.mu.Unlock()
	return newest != nil && newest.conn.Send(websocket.Text(raw)) == nil
}
