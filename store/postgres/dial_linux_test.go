package postgres

import (
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// TestLimitUnsent checks that connections to a server in the network end if the server stops confirming what was sent.
func TestLimitUnsent(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cfg, err := pgx.ParseConfig("")
	if err != nil {
		t.Fatal(err)
	}
	(&Store{}).prepare(cfg)
	conn, err := cfg.DialFunc(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var limit int
	if outer := raw.Control(func(fd uintptr) {
		limit, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); outer != nil || err != nil {
		t.Fatal(outer, err)
	}
	if want := int(confirmWithin.Milliseconds()); limit != want {
		t.Errorf("TCP_USER_TIMEOUT = %d ms, want %d", limit, want)
	}
}
