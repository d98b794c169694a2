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
	"runtime"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// SocketFile is the owner's socket in a data directory. If its path would be too long for a socket, SocketPointerFile
// contains another path. Both belong to the serving process; backups leave them out.
const (
	SocketFile        = "owner.sock"
	SocketPointerFile = "owner.sock.path"
	maxSocket         = 100 // bytes; operating systems allow 104 to 108
)

// ErrOwnerInUse means that another process answers on the owner's socket of this data directory.
var ErrOwnerInUse = errors.New("another process serves this data directory")

// OwnerSocket returns the path of the owner's socket of a data directory. The socket need not exist.
func OwnerSocket(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, SocketPointerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dir, SocketFile), nil
	}
	if err != nil {
		return "", fmt.Errorf("find owner socket: %w", err)
	}
	path := strings.TrimSpace(string(text))
	info, err := os.Lstat(filepath.Dir(path))
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 { // another user has taken the name since a crash
		return filepath.Join(dir, SocketFile), nil
	}
	return path, nil
}

func listenSocket(dir, runtimeDir string) (net.Listener, error) {
	old, err := OwnerSocket(dir)
	if err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", old, time.Second); err == nil {
		conn.Close()
		return nil, ErrOwnerInUse
	}
	// No process answers, so a socket at this path was left by a killed process.
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
	if err := os.Chmod(path, 0o600); err != nil { // before this, the mode 0700 of the directory kept others out
		l.Close()
		return nil, fmt.Errorf("listen for the owner: %w", err)
	}
	return l, nil
}

// placeSocket chooses the path of the socket: in the data directory or, if that is too long for a socket, in a
// directory of its own. It then writes the path to [SocketPointerFile].
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
	socketDir, err := shortDir(abs, runtimeDir)
	if err != nil {
		return "", err
	}
	path = filepath.Join(socketDir, SocketFile)
	if len(path) > maxSocket {
		return "", fmt.Errorf("%s: path is too long for a socket", path)
	}
	return path, atomicfile.Write(pointer, []byte(path+"\n"))
}

// shortDir makes a directory that only our user can enter: below runtimeDir, named after dir. Without runtimeDir, the
// name is random, because anybody could take a predictable one first.
func shortDir(dir, runtimeDir string) (string, error) {
	if runtimeDir == "" {
		return os.MkdirTemp("", "agentmesh-")
	}
	sum := sha256.Sum256([]byte(dir))
	path := filepath.Join(runtimeDir, "agentmesh-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o700)
}

// removeShortDir removes the directory that shortDir made. It removes the pointer first, because anybody may take the
// name of the directory as soon as it is free.
func removeShortDir(dir, socket string) {
	abs, err := filepath.Abs(dir)
	if err != nil || filepath.Dir(socket) == abs {
		return
	}
	if os.Remove(filepath.Join(dir, SocketPointerFile)) == nil { // otherwise the pointer and our empty directory stay
		_ = os.Remove(filepath.Dir(socket))
	}
}
