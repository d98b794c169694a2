package postgres

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnsent makes the operating system end a connection if the server does not confirm sent data within unsentFor.
// Without this, it sends again for a quarter of an hour, and sends no keep-alive probes meanwhile.
func limitUnsent(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	outer := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unsentFor.Milliseconds()))
	})
	if outer != nil {
		return outer
	}
	return err
}
