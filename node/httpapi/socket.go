package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// SocketFile is the owner's socket in a data directory. SocketPointerFile holds the path of the socket if the path in
// the data directory would be too long for one. Both belong to the process that serves: no backup holds them.
const (
	SocketFile        = "owner.sock"
	SocketPointerFile = "owner.sock.path"
	maxSocket         = 100 // bytes; the systems allow 104 to 108
)

// ErrOwnerInUse: another process answers on the owner's socket of this data directory.
var ErrOwnerInUse = errors.New("another process serves this data directory")

// OwnerSocket returns the path of the owner's socket of a data directory, for a client. It need not exist.
func OwnerSocket(dir string) (string, error) {
	path, err := os.ReadFile(filepath.Join(dir, SocketPointerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dir, SocketFile), nil
	}
	if err != nil {
		return "", fmt.Errorf("find owner socket: %w", err)
	}
	return strings.TrimSpace(string(path)), nil
}

// listenSocket opens the socket of a data directory, in place of a stale one.
func listenSocket(dir, runtimeDir string) (net.Listener, error) {
	old, err := OwnerSocket(dir)
	if err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", old, time.Second); err == nil {
		conn.Close()
		return nil, ErrOwnerInUse
	}
	// Nobody answers, so what lies there is what a killed process left.
	if info, err := os.Lstat(old); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(old); err != nil {
			return nil, fmt.Errorf("replace stale owner socket: %w", err)
		}
	}
	path, err := placeSocket(dir, runtimeDir)
	if err != nil {
		return nil, fmt.Errorf("place owner socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the owner: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // until here the 0700 directory keeps others out
		l.Close()
		return nil, fmt.Errorf("listen for the owner: %w", err)
	}
	return l, nil
}

// placeSocket decides where the socket lies: in the data directory, or, where that path is too long for a
// socket, in a directory of its own that a file in the data directory names.
func placeSocket(dir, runtimeDir string) (string, error) {
	pointer := filepath.Join(dir, SocketPointerFile)
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(abs, SocketFile)
	if len(path) <= maxSocket {
		if err := os.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return path, nil
	}
	home, err := shortDir(abs, runtimeDir)
	if err != nil {
		return "", err
	}
	path = filepath.Join(home, SocketFile)
	if len(path) > maxSocket {
		return "", fmt.Errorf("%s: path is too long for a socket", path)
	}
	return path, atomicfile.Write(pointer, []byte(path+"\n"))
}

// shortDir makes a directory that only we can enter: a fixed one for this data directory in runtimeDir, else a
// new one, because a predictable name in a directory that everybody can write is an invitation.
func shortDir(dir, runtimeDir string) (string, error) {
	if runtimeDir == "" {
		return os.MkdirTemp("", "agentmesh-")
	}
	sum := sha256.Sum256([]byte(dir))
	home := filepath.Join(runtimeDir, "agentmesh-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	return home, os.Chmod(home, 0o700)
}

// leaveShortDir removes what shortDir made, and the pointer to it: once the name is free, anybody may take it.
func leaveShortDir(dir, socket string) {
	if abs, err := filepath.Abs(dir); err == nil && filepath.Dir(socket) != abs {
		// What cannot be removed is one file or empty directory of our own too many.
		_ = os.Remove(filepath.Join(dir, SocketPointerFile))
		_ = os.Remove(filepath.Dir(socket))
	}
}
