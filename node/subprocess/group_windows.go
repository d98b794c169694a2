package subprocess

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// setProcessGroup keeps console signals to this process away from the command, and makes cancellation kill the
// command's process tree.
func setProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
	cmd.Cancel = func() error {
		// Windows cannot signal a group; taskkill walks the tree. The process itself is killed in any case.
		_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(cmd.Process.Pid)).Run()
		return cmd.Process.Kill()
	}
}

// killGroup does nothing: after the root of the tree has ended, its children cannot be found.
func killGroup(*exec.Cmd) {}

// UserID returns an error for a name: Windows has no way to run a command as another user without that user's password.
func UserID(name string) (int, error) {
	if name != "" {
		return 0, errors.New("on Windows, a command runs as the user of this process: leave the user of the command empty")
	}
	return os.Geteuid(), nil
}

func switchUser(_ *exec.Cmd, name string) error {
	_, err := UserID(name)
	return err
}
