package httpapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// AgentDoor configures the agent's door: the part of the owner API that is for the owner's agent. Services add
// operations to it with [Owner.AgentGroup]. No operation there decides anything for the owner. Socket and TokenFile
// must lie outside the data directory.
type AgentDoor struct {
	Socket    string // path of a Unix socket; "" for none
	Group     string // name or number of the group that may use Socket and read TokenFile; "" for none
	TokenFile string // file with the token for the TCP listener, made if it is missing; "" for none
}

// DoorHeader names the interface that a request comes through, for the audit log: "cli", "page". It proves nothing,
// because every caller of the owner's listener is the owner. A request over the owner's socket that names [DoorOfAgent]
// gets only what the agent's door offers.
const DoorHeader = "Agentmesh-Door"

// DoorOfAgent is the value of [DoorHeader] of every request through the agent's door.
const DoorOfAgent = "agent"

// ErrOwnerDecides means that the agent's door does not offer an operation.
var ErrOwnerDecides = &wire.Error{
	Code: wire.Unauthorized, Status: http.StatusForbidden,
	Message: "only the owner may do this; ask the owner to do it on the owner's page or with the agentmesh command",
}

// newAgentEcho returns the router of the agent's door. It shares no route with the owner's router, so a route is
// missing here until somebody adds it.
func (o *Owner) newAgentEcho() *echo.Echo {
	cross := http.NewCrossOriginProtection()
	e := newEcho(&gate{log: o.cfg.Logger, meter: o.cfg.Metrics.ownerRequests(), admit: func(c echo.Context) (done bool, err error) {
		Private(c)
		r := c.Request()
		r.Header.Set(DoorHeader, DoorOfAgent) // whatever the client claims
		o.agentUsed.Store(time.Now().Unix())
		if err := checkOrigin(cross, r); err != nil {
			return false, wire.ErrCrossOrigin.Because(err)
		}
		if r.Context().Value(overTCP{}) == nil {
			return false, nil
		}
		return false, o.checkHost(r, "") // no path, because the agent's door has no link pages
	}}, echo.ExtractIPDirect())
	e.Use(unescapeParams)
	// The listener has these routes for the owner, so "only the owner may do this" explains more than "not found".
	refuse := func(echo.Context) error { return ErrOwnerDecides }
	e.Any(PagePath, refuse)
	e.Any(PagePath+"/*", refuse)
	e.Any("/owner/sign-in", refuse)
	e.Any("/metrics", refuse)
	return e
}

// AgentUsed returns when a program last called the agent's door since the start, to the second; zero if none did.
func (o *Owner) AgentUsed() time.Time {
	if at := o.agentUsed.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// AgentGroup returns the group under /owner of the agent's door.
func (o *Owner) AgentGroup() *echo.Group { return o.agent.Group("/owner") }

// Agent returns the router of the agent's door, for routes outside of /owner.
func (o *Owner) Agent() *echo.Echo { return o.agent }

// AgentHandler serves the agent's door, without a token, to callers in this process.
func (o *Owner) AgentHandler() http.Handler { return o.agent }

// pickDoor serves a request with the router of its door. A request gets the agent's door over TCP with the agent's
// token, or over the owner's socket if it names that door.
func (o *Owner) pickDoor(w http.ResponseWriter, r *http.Request) {
	isTCP := r.Context().Value(overTCP{}) != nil
	door := o.echo
	switch token, ok := Bearer(r); {
	case isTCP && ok && o.isAgentToken(token):
		door = o.agent
	case !isTCP && r.Header.Get(DoorHeader) == DoorOfAgent:
		door = o.agent
	}
	door.ServeHTTP(w, r)
}

func (o *Owner) isAgentToken(token string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.agentToken != tokenHash{} && o.agentToken.matches(token)
}

// listenAgent reads the agent's token and opens the agent's socket, if they are configured.
func (o *Owner) listenAgent() (err error) {
	door := o.cfg.Agent
	if door.TokenFile != "" {
		err := makeParent(filepath.Dir(door.TokenFile))
		if err == nil {
			err = CheckOutside(o.cfg.Dir, door.TokenFile)
		}
		if err != nil {
			return fmt.Errorf("agent_door.token_file: %w", err)
		}
		if o.agentToken, err = readToken(door.TokenFile, 0o007, tokenMode(door.Group)); err != nil { // 0o007: no other users
			return err
		}
		if err := setGroup(door.TokenFile, door.Group); err != nil {
			return fmt.Errorf("agent_door.token_file: %w", err)
		}
	}
	if door.Socket == "" {
		return nil
	}
	socket, err := listenAgentSocket(o.cfg.Dir, door)
	if err != nil {
		return fmt.Errorf("agent_door.socket: %w", err)
	}
	o.agentSockets = append(o.agentSockets, socket)
	return nil
}

// HookSocket returns the path of a socket of the agent's door for the owner's hooks that run as a user of this machine,
// the only user who may open it. [Owner.Listen] opens the socket. In a process that does not listen, a hook finds
// nothing there, and so no way to act as the owner by mistake.
func (o *Owner) HookSocket(uid int) string {
	path := filepath.Join(o.hookDir, strconv.Itoa(uid))
	o.hookSockets[uid] = path
	return path
}

func (o *Owner) listenHooks() error {
	if len(o.hookSockets) == 0 {
		return nil
	}
	err := os.Mkdir(o.hookDir, 0o700)
	for uid, path := range o.hookSockets {
		if err != nil {
			break
		}
		var l net.Listener
		if l, err = net.Listen("unix", path); err != nil {
			break
		}
		o.agentSockets = append(o.agentSockets, l)
		if err = os.Chmod(path, 0o600); err == nil && uid != os.Geteuid() {
			err = os.Chown(path, uid, -1)
		}
	}
	if err == nil {
		err = os.Chmod(o.hookDir, 0o711) // not before the sockets are closed to others
	}
	if err != nil {
		return fmt.Errorf("open the agent's door for hooks in the directory for temporary files: %w", err)
	}
	return nil
}

// tokenMode returns the mode of a new token file. A configured group may read the file.
func tokenMode(group string) fs.FileMode {
	if group != "" {
		return 0o640
	}
	return 0o600
}

// agentListener listens on a socket that was moved to path after it was opened.
type agentListener struct {
	net.Listener
	path string
}

// Close stops listening and removes the socket.
func (l agentListener) Close() error {
	err := l.Listener.Close()
	if removeErr := os.Remove(l.path); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// makeParent makes a directory that everybody may enter, despite the umask. It does not change an existing directory.
func makeParent(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
}

func listenAgentSocket(dir string, door AgentDoor) (net.Listener, error) {
	parent := filepath.Dir(door.Socket)
	if err := makeParent(parent); err != nil {
		return nil, err
	}
	if err := CheckOutside(dir, door.Socket); err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", door.Socket, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: another process listens on this socket; stop it, or name another path", door.Socket)
	}
	if info, err := os.Lstat(door.Socket); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket; name another path", door.Socket)
	}
	// Until the socket has its group and mode, it stays in a directory that only we can enter.
	private, err := os.MkdirTemp(parent, ".sock")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private)
	opened := filepath.Join(private, "s")
	if length := max(len(opened), len(door.Socket)); length > maxSocket {
		return nil, fmt.Errorf("%s: the path is %d bytes too long for a socket; name a shorter one", door.Socket, length-maxSocket)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: opened, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	mode := fs.FileMode(0o600)
	if door.Group != "" {
		mode = 0o660
	}
	err = errors.Join(setGroup(opened, door.Group), os.Chmod(opened, mode))
	if err == nil {
		err = os.Rename(opened, door.Socket) // replaces a socket that a killed process left
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return agentListener{l, door.Socket}, nil
}

// CheckOutside returns an error if path, a file of the agent's door, lies in the data directory or in a directory in
// which other users may replace files. Directories that do not exist yet are made by the door.
func CheckOutside(dir, path string) error {
	parent, err := realPath(filepath.Dir(path))
	if err != nil {
		return err
	}
	home, err := realPath(dir)
	if err != nil {
		return err
	}
	if parent == home || strings.HasPrefix(parent, home+string(filepath.Separator)) {
		return fmt.Errorf("%s lies in the data directory, where the owner's socket is; name a path outside", path)
	}
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("other users may change %s; name a path in a directory that only you may change", parent)
	}
	return err
}

// realPath returns the absolute path of a directory without symbolic links. The end of the path need not exist.
func realPath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(dir)
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		path, err = realPath(parent)
		path = filepath.Join(path, filepath.Base(dir))
	}
	return path, err
}

func setGroup(path, group string) error {
	if group == "" {
		return nil
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		g, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return err
		}
	}
	return os.Lchown(path, -1, gid)
}
