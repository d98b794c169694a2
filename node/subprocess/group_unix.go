//go:build unix

package subprocess

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the command into its own process group, and makes cancellation kill the group.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		killGroup(cmd)
		return nil
	}
}

// killGroup kills the remaining processes of the group. The system does not reuse the group's id while a member lives;
// if no member lives, the kill has no effect.
func killGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // an error means that the group has ended
	}
}
