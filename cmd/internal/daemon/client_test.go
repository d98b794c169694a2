package daemon

import (
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// silentTransport stands for a process that accepts connections and never answers.
type silentTransport struct{}

func (silentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestCommandGivesUpOnASilentServe: a command does not wait forever for a process that hangs.
func TestCommandGivesUpOnASilentServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Client{Client: owner.Client{HTTP: &http.Client{Transport: silentTransport{}}}, dataDir: datadir.Dir("data")}
		o.unanswered.Store(true)
		for name, call := range map[string]func() error{
			"Call": func() error {
				_, err := o.Call(t.Context(), http.MethodGet, "status", nil, nil)
				return err
			},
			"Do": func() error {
				_, err := o.Do(t.Context(), http.MethodGet, "events", nil, nil)
				return err
			},
		} {
			began := time.Now()
			err := call()
			if !goldentest.Refuses(t, name, err) || exit.Code(err) != exit.Unavailable {
				t.Errorf("%s: %v, want the exit code %d and how long it waited", name, err, exit.Unavailable)
			}
			if took := time.Since(began); took != firstAnswerTimeout {
				t.Errorf("%s gave up after %v, want %v", name, took, firstAnswerTimeout)
			}
		}
	})
}

// TestAgentGivesUpOnASilentServe: a client of the agent's door knows no data directory, so its error names the socket
// and not a process of the working directory.
func TestAgentGivesUpOnASilentServe(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile(datadir.FilePID, []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", "door.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o, err := ConnectAgent(t.Context(), "door.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.HTTP.Transport = silentTransport{}
	synctest.Test(t, func(t *testing.T) {
		_, err = o.Call(t.Context(), http.MethodGet, "status", nil, nil)
	})
	if !goldentest.Refuses(t, "call", err) {
		t.Errorf("call = %v, want the socket", err)
	}
}
