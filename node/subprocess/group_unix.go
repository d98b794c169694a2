//go:build unix

package subprocess

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// setProcessGroup puts the command into its own process group, and makes cancellation kill the group.
func setProcessGroup(cmd *exec.Cmd) {
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

// switchUser makes the command run as the named user, with that user's groups.
func switchUser(cmd *exec.Cmd, name string) error {
	credential, err := credentialOf(name)
	if err != nil || int(credential.Uid) == os.Geteuid() {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("this process may not run a command as the user %s: run it as root, or leave the user of the command empty", name)
	}
	cmd.SysProcAttr.Credential = credential
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true // a new session has no access to our terminal
	return nil
}

func credentialOf(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("this machine has no user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("the user %s has no usable id: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("the user %s has no usable group: %w", name, err)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("read the groups of %s: %w", name, err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			credential.Groups = append(credential.Groups, uint32(n))
		}
	}
	return credential, nil
}

// UserID returns the id of the user that runs a command with this [Command.User], or an error if this process may not run
// a command as that user.
func UserID(name string) (int, error) {
	cmd := &exec.Cmd{SysProcAttr: &syscall.SysProcAttr{}}
	if name != "" {
		if err := switchUser(cmd, name); err != nil {
			return 0, err
		}
	}
	if credential := cmd.SysProcAttr.Credential; credential != nil {
		return int(credential.Uid), nil
	}
	return os.Geteuid(), nil
}
