//go:build !unix

package websocket

import "net"

// waiter does nothing on this platform: the reader itself waits.
type waiter struct{}

func newWaiter(net.Conn) *waiter { return &waiter{} }

func (*waiter) wait() {}
