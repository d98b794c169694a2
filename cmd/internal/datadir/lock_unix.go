//go:build !windows

package datadir

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks the file at path, which it makes if it does not exist, until the caller calls release. The error is
// ErrInUse if another process has the lock.
func lockFile(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, err
	}
	locked, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if named, err := os.Stat(path); err != nil || !os.SameFile(locked, named) { // the last process with the lock has removed the file
		f.Close()
		return nil, ErrInUse
	}
	return func() { f.Close() }, nil
}
