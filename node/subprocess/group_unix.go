//go:build unix

package subprocess

import (
	"os/exec"
	"syscall"
)

// ownGroup gives the command a process group of its own, which is what is killed when its time is over.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		killGroup(cmd)
		return nil
	}
}

// killGroup kills what is left of the group. Its id cannot have been given to others while a member lives; where
// none does, the kill reaches nobody.
func killGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // no group left is no fault
	}
}
