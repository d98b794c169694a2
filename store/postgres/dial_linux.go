package postgres

import (
	"cmp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnconfirmed makes the operating system end a connection if the server does not confirm sent data within
// confirmWithin. Otherwise, the system would repeat the data for a quarter of an hour, and would send no keep-alive
// probes meanwhile.
func limitUnconfirmed(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(confirmWithin.Milliseconds()))
	})
	return cmp.Or(controlErr, err)
}
