package datadir

import (
	"errors"
	"syscall"
)

// errSharingViolation is the error of Windows for a file that another process has open.
const errSharingViolation = syscall.Errno(32)

// lockFile locks the file at path, which it makes if it does not exist, until the caller calls release. The error is
// ErrInUse if another process has the lock.
func lockFile(path string) (release func(), err error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	const shareNothing = 0
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, shareNothing, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errSharingViolation) {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = syscall.CloseHandle(h) }, nil
}
