//go:build !unix

package websocket

import "net"

// waiter is nothing here: the reader waits by itself.
type waiter struct{}

func newWaiter(net.Conn) *waiter { return &waiter{} }

func (*waiter) wait() {}
