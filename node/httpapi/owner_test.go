package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// startOwner serves an owner's listener with one route until the test ends.
func startOwner(t *testing.T, cfg OwnerConfig) *Owner {
	t.Helper()
	o := NewOwner(cfg)
	o.Group().GET("/thing", ok)
	o.Group().POST("/thing", ok)
	serveOwner(t, o)
	return o
}

// postToSocket sends a request to the owner's socket of dir.
func postToSocket(t *testing.T, dir string) (int, string) {
	t.Helper()
	path := OwnerSocket(dir)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post("http://owner/owner/thing", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestOwnerSocket(t *testing.T) { // AM-77
	dir := shortTempDir(t)
	startOwner(t, OwnerConfig{Dir: dir})
	if status, body := postToSocket(t, dir); status != 200 {
		t.Errorf("over the socket: %d %s", status, body)
	}
	info, err := os.Stat(filepath.Join(dir, SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, want 0600", info.Mode())
	}
	if _, err := os.Stat(filepath.Join(dir, TokenFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a token lies there although nothing listens on TCP: %v", err)
	}
	if err := NewOwner(OwnerConfig{Dir: dir}).Listen(); !errors.Is(err, ErrOwnerInUse) {
		t.Errorf("a second listener: %v, want %v", err, ErrOwnerInUse)
	}
}

// shortTempDir is t.TempDir with a path that is short enough for a socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "am")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestOwnerSocketReplacesAStaleOne(t *testing.T) {
	dir := shortTempDir(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, SocketFile), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as after a killed process
	l.Close()
	startOwner(t, OwnerConfig{Dir: dir})
	if status, body := postToSocket(t, dir); status != 200 {
		t.Errorf("over the socket: %d %s", status, body)
	}
}

func TestOwnerSocketOfALongPath(t *testing.T) { // docs/architecture.md, "Data directory"
	long := filepath.Join(shortTempDir(t), strings.Repeat("d", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := NewOwner(OwnerConfig{Dir: long}).Listen(); err == nil || !strings.Contains(err.Error(), "at most 92 bytes") {
		t.Errorf("a data directory with a long path: %v", err)
	}
}

func TestOwnerOverTCP(t *testing.T) { // AM-77, THREATS row 23
	dir := shortTempDir(t)
	o := startOwner(t, OwnerConfig{Dir: dir, Listen: "127.0.0.1:0", Hosts: []string{"mesh.internal"}})
	text, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	if info, _ := os.Stat(filepath.Join(dir, TokenFile)); runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("token file mode = %v, want 0600", info.Mode())
	}
	tests := []struct {
		name   string
		method string
		host   string
		token  string
		site   string
		want   int
	}{
		{"with the token", "POST", "", token, "", 200},
		{"a listed host", "GET", "mesh.internal:80", token, "", 200},
		{"without a token", "GET", "", "", "", 401},
		{"a wrong token", "GET", "", token + "x", "", 401},
		{"rebound name", "GET", "evil.example", token, "", 400},
		{"a page elsewhere", "POST", "", token, "cross-site", 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := http.NewRequest(tt.method, "http://"+o.Addr().String()+"/owner/thing", nil)
			if tt.host != "" {
				r.Host = tt.host
			}
			if tt.token != "" {
				r.Header.Set("Authorization", "Bearer "+tt.token)
			}
			if tt.site != "" {
				r.Header.Set("Sec-Fetch-Site", tt.site)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != tt.want {
				t.Errorf("status = %d, want %d", resp.StatusCode, tt.want)
			}
			if got := resp.Header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control = %q, want no-store", got)
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestOwnerTokenIsKept(t *testing.T) {
	dir := t.TempDir()
	first, err := loadToken(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := loadToken(dir); err != nil || again != first {
		t.Errorf("the token changed over a restart (%v)", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(filepath.Join(dir, TokenFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadToken(dir); err == nil { // THREATS row 29
		t.Error("a token that others can read is accepted")
	}
}

func TestOwnerListensOnLoopbackOnly(t *testing.T) {
	if err := NewOwner(OwnerConfig{Dir: shortTempDir(t), Listen: "0.0.0.0:0"}).Listen(); err == nil {
		t.Error("the owner's listener opened to the world")
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", "Bearer  abc ": "abc",
		"": "", "abc": "", "Bearer": "", "Bearer ": "", "Basic abc": "",
	} {
		r, _ := http.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		if got, ok := Bearer(r); got != want || ok != (want != "") {
			t.Errorf("Bearer(%q) = %q, %v, want %q", header, got, ok, want)
		}
	}
}

func TestInProcessOwner(t *testing.T) {
	o := NewOwner(OwnerConfig{})
	o.Group().GET("/thing", func(c echo.Context) error { return JSON(c, 200, "ok") })
	if w := do(o.Handler(), "GET", "/owner/thing", ""); w.Code != 200 {
		t.Errorf("in process: %d", w.Code)
	}
}
