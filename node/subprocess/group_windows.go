package subprocess

import (
	"os/exec"
	"strconv"
	"syscall"
)

// ownGroup keeps console signals of this process away from the command, and kills its whole tree at its end.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
	cmd.Cancel = func() error {
		// Windows has no group to signal; taskkill walks the tree. The process itself dies whatever it does.
		_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(cmd.Process.Pid)).Run()
		return cmd.Process.Kill()
	}
}

// killGroup does nothing: once the root of the tree has ended, its children cannot be found.
func killGroup(*exec.Cmd) {}
