//go:build unix

package websocket

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// waiter waits for a byte from the peer before the reader of the WebSocket library is called. Most connections wait most
// of the time, and a goroutine inside that reader has a stack of twice the size.
type waiter struct {
	raw   syscall.RawConn // if nil, wait returns at once
	ready func(fd uintptr) bool
	buf   [1]byte
}

// newWaiter unwraps conn to find its socket. The waiter of a TLS connection does not wait, because TLS may have read the
// next data from the socket already.
func newWaiter(conn net.Conn) *waiter {
	w := &waiter{}
	for conn != nil {
		if _, secure := conn.(*tls.Conn); secure {
			return w
		}
		if sock, ok := conn.(syscall.Conn); ok {
			if raw, err := sock.SyscallConn(); err == nil {
				w.raw = raw
			}
			break
		}
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return w
		}
		conn = inner.NetConn()
	}
	w.ready = func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), w.buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(err, syscall.EAGAIN)
	}
	return w
}

// wait returns when there is something to read, the connection has ended, or waiting is not possible.
func (w *waiter) wait() {
	if w.raw != nil {
		_ = w.raw.Read(w.ready) // the next read reports an error
	}
}
