package httpapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// SocketFile is the owner's socket in a data directory. It belongs to the serving process; backups leave it out.
const SocketFile = "owner.sock"

const maxSocket = 103 // bytes of its path; operating systems allow 103 to 107

// ErrOwnerInUse means that another process answers on the owner's socket of this data directory.
var ErrOwnerInUse = errors.New("another process serves this data directory")

// OwnerSocket returns the path of the owner's socket of a data directory. The socket need not exist.
func OwnerSocket(dir string) string { return filepath.Join(dir, SocketFile) }

func listenSocket(dir string) (net.Listener, error) {
	path := OwnerSocket(dir)
	if len(path) > maxSocket {
		return nil, fmt.Errorf("the owner's socket needs a data directory whose path has at most %d bytes, not %s", maxSocket-len(SocketFile)-1, dir)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, ErrOwnerInUse
	}
	// No process answers, so a socket at this path was left by a killed process.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace stale owner socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the owner: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // before this, the mode 0700 of the directory kept others out
		l.Close()
		return nil, fmt.Errorf("listen for the owner: %w", err)
	}
	return l, nil
}
