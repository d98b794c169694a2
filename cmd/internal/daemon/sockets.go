package daemon

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// sockets are the TCP listeners of serve. They stay open while serve starts again with another configuration: browsers
// and peers wait in the queue of the operating system and are not refused.
type sockets struct {
	mu   sync.Mutex
	open []*socket
	keep bool // Close leaves a listener open for the next [Process]
}

// socket is one of these listeners.
type socket struct {
	*net.TCPListener
	all   *sockets
	asked string // the address that the caller asked for
	idle  bool   // closed by its user, but kept open
}

// listen returns the idle listener of an address, or opens one.
func (s *sockets) listen(address string) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.open {
		if l.idle && (l.asked == address || l.Addr().String() == address) {
			l.idle = false
			return l, l.SetDeadline(time.Time{})
		}
	}
	opened, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &socket{TCPListener: opened.(*net.TCPListener), all: s, asked: address}
	s.open = append(s.open, l)
	return l, nil
}

// Close implements [net.Listener].
func (l *socket) Close() error {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.all.keep {
		l.idle = true
		return l.SetDeadline(time.Unix(1, 0)) // ends a waiting Accept
	}
	l.all.open = slices.DeleteFunc(l.all.open, func(k *socket) bool { return k == l })
	return l.TCPListener.Close()
}

// hold makes the listeners stay open for the next [Process].
func (s *sockets) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = true
}

// settle closes the listeners that the new [Process] does not use. From then on, Close closes a listener for good.
func (s *sockets) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = false
	var err error
	s.open = slices.DeleteFunc(s.open, func(l *socket) bool {
		if l.idle {
			err = errors.Join(err, l.TCPListener.Close())
		}
		return l.idle
	})
	return err
}
