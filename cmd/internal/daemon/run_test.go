package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

func loadOptions(t *testing.T, dir string, src config.Source) (Options, error) {
	cfg, err := src.LoadAndCheck(LinkKinds())
	return Options{
		Config: cfg, Source: src, Dir: datadir.Dir(dir), Logger: slog.New(slog.DiscardHandler),
		Passphrase: func() ([]byte, error) { return nil, nil }, Note: t.Logf,
	}, err
}

// TestRunPortInUse: a process that starts again ends if its new port is in use. It does not wait for the database.
func TestRunPortInUse(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	options := func(listen string) (Options, error) {
		src := config.Source{File: filepath.Join(dir, "agentmesh.yaml"), Settings: []config.Setting{
			{Key: "listen", Value: listen}, {Key: "roles", Value: "directory"},
		}}
		return loadOptions(t, dir, src)
	}
	o, err := options("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = Run(ctx, o, func() (Options, error) { return options(other.Addr().String()) }, func(_ context.Context, p *Process, _ ServeInfo) error {
		p.rerun.restart()
		return nil
	})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("serve ended with %v, %v; want at once, because the port is in use", err, ctx.Err())
	}
}

// directoryOptions returns the options of a process with a directory, and a function that loads them again.
func directoryOptions(t *testing.T) (load func() (Options, error), o Options) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	src := config.Source{File: filepath.Join(dir, "agentmesh.yaml"), Settings: []config.Setting{
		{Key: "listen", Value: "127.0.0.1:0"}, {Key: "roles", Value: "directory"},
	}}
	load = func() (Options, error) { return loadOptions(t, dir, src) }
	o, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return load, o
}

// TestRunWithoutConfiguration: a process that starts again goes on with the configuration that it has if somebody broke
// the file meanwhile.
func TestRunWithoutConfiguration(t *testing.T) {
	_, o := directoryOptions(t)
	ctx, cancel := context.WithCancel(t.Context())
	serving, reloads, done := make(chan *Process, 1), make(chan struct{}, 1), make(chan error, 1)
	var address string
	broken := func() (Options, error) {
		reloads <- struct{}{}
		return Options{}, errors.New("the file is broken")
	}
	go func() {
		done <- Run(ctx, o, broken, func(_ context.Context, p *Process, info ServeInfo) error {
			address = info.Address
			serving <- p
			return nil
		})
	}()
	(<-serving).rerun.restart()
	<-reloads
	for deadline := time.Now().Add(10 * time.Second); ; {
		resp, err := http.Get("http://" + address + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-done:
			t.Fatalf("the process ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the process does not serve again")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestRunMirrorStartsAgain: a mirror that starts again is still a mirror, where nobody registers.
func TestRunMirrorStartsAgain(t *testing.T) {
	load, o := directoryOptions(t)
	o.Mirror = "http://127.0.0.1:1/v1"
	ctx, cancel := context.WithCancel(t.Context())
	serving, reloads, done := make(chan *Process, 1), make(chan struct{}, 1), make(chan error, 1)
	var address string
	reload := func() (Options, error) {
		reloads <- struct{}{}
		return load()
	}
	go func() {
		done <- Run(ctx, o, reload, func(_ context.Context, p *Process, info ServeInfo) error {
			address = info.Address
			serving <- p
			return nil
		})
	}()
	p := <-serving
	fresh := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no connection to the process that ended
	register := func() string {
		resp, err := fresh.Post("http://"+address+"/v1/agents", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	first := register()
	p.rerun.restart()
	<-reloads
	if again := register(); again != first || !strings.Contains(first, "read-only") {
		t.Errorf("a registration is answered %s, and after another start %s", first, again)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}
