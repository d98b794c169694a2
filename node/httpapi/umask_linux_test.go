package httpapi

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestAgentDoorUnderUmask: the group of the agent's door reaches its socket and its token under the umask of the
// shipped systemd unit.
func TestAgentDoorUnderUmask(t *testing.T) {
	group, err := user.LookupGroupId(strconv.Itoa(os.Getgid()))
	if err != nil {
		t.Skip(err)
	}
	dir, outside := shortTempDir(t), shortTempDir(t)
	socket, token := filepath.Join(outside, "sub", "agent.sock"), filepath.Join(outside, "agent.token")
	defer syscall.Umask(syscall.Umask(0o077))
	startDoors(t, OwnerConfig{Dir: dir, Agent: AgentDoor{Socket: socket, Group: group.Name, TokenFile: token}})
	for path, want := range map[string]fs.FileMode{filepath.Dir(socket): 0o755, socket: 0o660, token: 0o640} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %o", path, info.Mode(), err, want)
		}
	}
}
