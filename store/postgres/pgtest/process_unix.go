//go:build unix

package pgtest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// quit is the signal at which a server ends at once.
const quit = syscall.SIGQUIT

// account returns the user as which the server must run, or false if that is the current user. PostgreSQL refuses to
// run as root.
func account() (uid, gid int, ok bool) {
	if os.Getuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, err := strconv.Atoi(u.Uid)
			gid, gidErr := strconv.Atoi(u.Gid)
			return uid, gid, err == nil && gidErr == nil
		}
	}
	return 0, 0, false
}

// giveToServer changes the owner of a folder to the user of the server.
func giveToServer(dir string) error {
	if uid, gid, ok := account(); ok {
		return os.Chown(dir, uid, gid)
	}
	return nil
}

// processAttributes makes a program run as the user of account.
func processAttributes() *syscall.SysProcAttr {
	uid, gid, ok := account()
	if !ok {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// killAll kills a process and its children at once, so that they cannot react.
func killAll(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // so that the process starts no more children
	for child := range children(pid) {
		_ = syscall.Kill(child, syscall.SIGKILL) // the child may have ended
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
