//go:build unix

package datadir

import (
	"fmt"
	"os"
	"syscall"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// checkOwner refuses to write files anew beside or instead of path if path belongs to another user. Only root can try: the
// new files would belong to root, and the user whose service needs them could not open them.
func (d Dir) checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() {
		return nil
	}
	return exit.FailHint(exit.Config, fmt.Errorf("%s belongs to the user with number %d", path, owner.Uid), fmt.Sprintf("run the command as that user, for example with sudo -u '#%d'", owner.Uid))
}
