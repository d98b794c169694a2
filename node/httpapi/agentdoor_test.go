package httpapi

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// startDoors serves an owner's listener whose routes tell which door they belong to.
func startDoors(t *testing.T, cfg OwnerConfig) *Owner {
	t.Helper()
	o := NewOwner(cfg)
	o.Group().GET("/door", func(c echo.Context) error { return JSON(c, 200, "owner") })
	o.Group().POST("/decide", ok)
	o.AgentGroup().GET("/door", func(c echo.Context) error {
		return JSON(c, 200, "agent by "+c.Request().Header.Get(DoorHeader))
	})
	serveOwner(t, o)
	return o
}

// callDoor makes a request with the header of a door and a bearer token, and returns the status and the body.
func callDoor(t *testing.T, network, address, method, path, door, token string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if door != "" {
		r.Header.Set(DoorHeader, door)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(body))
}

// TestAgentDoor: the agent's socket and the agent's token reach only the routes of the agent's door, and every request
// through them is the agent's, whatever its header claims (THREATS row 40).
func TestAgentDoor(t *testing.T) {
	dir, outside := shortTempDir(t), shortTempDir(t)
	socket, tokenFile := filepath.Join(outside, "sub", "agent.sock"), filepath.Join(outside, "new", "folder", "agent.token")
	o := startDoors(t, OwnerConfig{Dir: dir, Listen: "127.0.0.1:0", Agent: AgentDoor{Socket: socket, TokenFile: tokenFile}})
	if info, err := os.Stat(socket); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v, want mode 0600", info, err)
	}
	read := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	agent, own, tcp := read(tokenFile), read(filepath.Join(dir, TokenFile)), o.Addr().String()
	if agent == own || len(agent) < 20 {
		t.Errorf("the agent's token is %q", agent)
	}
	ownSocket := filepath.Join(dir, SocketFile)
	for _, tt := range []struct {
		name, network, address, method, path, door, token string
		status                                            int
		body                                              string
	}{
		{"socket", "unix", socket, "GET", "/owner/door", "", "", 200, `"agent by agent"`},
		{"socket as cli", "unix", socket, "GET", "/owner/door", "cli", "", 200, `"agent by agent"`},
		{"socket with the owner's token", "unix", socket, "POST", "/owner/decide", "page", own, 404, ""},
		{"socket, page", "unix", socket, "GET", "/owner/page/", "", "", 403, ""},
		{"socket, page login", "unix", socket, "POST", "/owner/page/login", "", "", 403, ""},
		{"socket, metrics", "unix", socket, "GET", "/metrics", "", "", 403, ""},
		{"token", "tcp", tcp, "GET", "/owner/door", "cli", agent, 200, `"agent by agent"`},
		{"token decides", "tcp", tcp, "POST", "/owner/decide", "", agent, 404, ""},
		{"token, page", "tcp", tcp, "GET", "/owner/page/", "", agent, 403, ""},
		{"wrong token", "tcp", tcp, "GET", "/owner/door", "agent", agent + "x", 401, ""},
		{"no token", "tcp", tcp, "GET", "/owner/door", "agent", "", 401, ""},
		{"owner's token", "tcp", tcp, "GET", "/owner/door", "", own, 200, `"owner"`},
		{"owner's token as agent", "tcp", tcp, "GET", "/owner/door", "agent", own, 200, `"owner"`},
		{"owner's socket", "unix", ownSocket, "GET", "/owner/door", "cli", "", 200, `"owner"`},
		{"owner's socket as agent", "unix", ownSocket, "GET", "/owner/door", "agent", "", 200, `"agent by agent"`},
		{"owner's socket as agent decides", "unix", ownSocket, "POST", "/owner/decide", "agent", "", 404, ""},
	} {
		status, body := callDoor(t, tt.network, tt.address, tt.method, tt.path, tt.door, tt.token)
		if status != tt.status || tt.body != "" && body != tt.body {
			t.Errorf("%s: %d %s, want %d %s", tt.name, status, body, tt.status, tt.body)
		}
		if status == 403 && !goldentest.Says(t, tt.name, body) {
			t.Errorf("%s: %s does not name the owner", tt.name, body)
		}
	}
}

// TestAgentSocketIsNeverOpenToOthers: nobody who looks at the path of the agent's socket while it is opened sees other
// permissions than the configured ones.
func TestAgentSocketIsNeverOpenToOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no mode")
	}
	dir, socket := shortTempDir(t), filepath.Join(shortTempDir(t), "agent.sock")
	done := make(chan bool)
	seen := make(chan fs.FileMode, 1)
	go func() {
		defer close(seen)
		for {
			if info, err := os.Lstat(socket); err == nil && info.Mode().Perm() != 0o600 {
				seen <- info.Mode()
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	for range 300 {
		l, err := listenAgentSocket(dir, AgentDoor{Socket: socket})
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	close(done)
	if mode, open := <-seen; open {
		t.Errorf("the socket had the mode %v", mode)
	}
	if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestAgentDoorLiesOutside: whoever may open the door's directory must not find the owner's socket there.
func TestAgentDoorLiesOutside(t *testing.T) {
	dir, outside := shortTempDir(t), shortTempDir(t)
	if err := os.Symlink(dir, filepath.Join(outside, "link")); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(outside, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(outside, "file")
	if err := os.WriteFile(file, []byte("short"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, door := range map[string]AgentDoor{
		"in the data directory":    {Socket: filepath.Join(dir, "a.sock")},
		"below the data directory": {Socket: filepath.Join(dir, "sub", "a.sock")},
		"through a link":           {Socket: filepath.Join(outside, "link", "a.sock")},
		"token in the directory":   {TokenFile: filepath.Join(dir, "agent.token")},
		"where everybody writes":   {Socket: filepath.Join(open, "a.sock")},
		"over a file":              {Socket: file},
		"readable token":           {TokenFile: file},
		"unknown group":            {Socket: filepath.Join(outside, "g.sock"), Group: "no-such-group-here"},
		"long path":                {Socket: filepath.Join(outside, strings.Repeat("x", 100))},
	} {
		o := NewOwner(OwnerConfig{Dir: dir, Agent: door})
		if err := o.Listen(); err == nil || !strings.Contains(err.Error(), "agent_door") && name != "readable token" {
			t.Errorf("%s: Listen = %v, want an error that names the key", name, err)
		}
		if status := o.socket; status != nil {
			t.Errorf("%s: the owner's socket stays open", name)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "short" {
		t.Errorf("a file was replaced: %q, %v", data, err)
	}
}

// TestHookSocket: hooks have a socket of the agent's door that no other user may open, and that goes with the process
// (THREATS row 48).
func TestHookSocket(t *testing.T) {
	o := NewOwner(OwnerConfig{Dir: shortTempDir(t)})
	o.Group().POST("/decide", ok)
	o.AgentGroup().POST("/send", ok)
	socket := o.HookSocket(os.Geteuid())
	stop := serveOwner(t, o)
	for path, want := range map[string]int{"/owner/send": http.StatusOK, "/owner/decide": http.StatusNotFound, PagePath: http.StatusForbidden} {
		if status, body := callDoor(t, "unix", socket, "POST", path, "cli", ""); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, body, want)
		}
	}
	if info, err := os.Stat(socket); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v, want mode 0600", info, err)
	}
	stop()
	if _, err := os.Stat(filepath.Dir(socket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the socket is left: %v", err)
	}
}
