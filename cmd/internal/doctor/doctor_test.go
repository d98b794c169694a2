package doctor

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestDoctorClock: how serious a wrong clock is depends on its direction (AM-84).
func TestDoctorClock(t *testing.T) {
	for _, tc := range []struct {
		ahead time.Duration
		state string
		text  string
	}{
		{0, findingOK, "agrees"},
		{-20 * time.Second, findingOK, "agrees"},
		{2 * time.Minute, findingWarn, "2m0s ahead"},
		{-2 * time.Minute, findingWarn, "2m0s behind"},
		{6 * time.Minute, findingFail, "6m0s ahead"},
		{-6 * time.Minute, findingWarn, "6m0s behind"},
		{-16 * time.Minute, findingFail, "16m0s behind"},
	} {
		d := examination{cfg: config.Default()}
		d.checkClock("https://mesh.example.org/v1", tc.ahead)
		d.checkClock("https://mesh.example.org", tc.ahead) // the same server
		if len(d.findings) != 1 || d.findings[0].State != tc.state || !strings.Contains(d.findings[0].Text, tc.text) {
			t.Errorf("checkClock(%v) found %+v, want %s, %q", tc.ahead, d.findings, tc.state, tc.text)
		}
		if tc.state != findingOK && !strings.Contains(d.findings[0].Do, "time service") {
			t.Errorf("checkClock(%v) says to do %q", tc.ahead, d.findings[0].Do)
		}
	}
}

// TestDoctorNameWithoutNetwork: if no name server answers, the name may have a DNS record.
func TestDoctorNameWithoutNetwork(t *testing.T) {
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("network is unreachable")
	}}
	d := examination{cfg: config.Default()}
	d.checkName(t.Context(), &url.URL{Scheme: "https", Host: "mesh.example.org"}, false)
	if f := d.findings[0]; f.State != findingFail || !strings.Contains(f.Text, "cannot be looked up") || strings.Contains(f.Do, "DNS record") {
		t.Errorf("found %+v", f)
	}
}

// TestDoctorOtherAgent: the findings about the card of an agent elsewhere do not speak of files and commands here.
func TestDoctorOtherAgent(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"agent_id":"am_a","endpoint":"https://b.example/agentmesh"}`))
	}))
	defer srv.Close()
	card, err := wire.ParseObject([]byte(`{"agent_id":"am_a","endpoint":"https://a.example/agentmesh"}`))
	if err != nil {
		t.Fatal(err)
	}
	d := examination{cfg: config.Default(), card: card, elsewhere: true}
	p := d.newPeer(true)
	defer p.Close()
	d.checkListing(t.Context(), p, srv.URL)
	last := d.findings[len(d.findings)-1]
	if last.State != findingFail || strings.Contains(last.Text, datadir.FileCard) || !strings.Contains(last.Do, "where the agent runs") {
		t.Errorf("found %+v", last)
	}
}

// TestDoctorInvalidConfiguration: without a valid configuration, doctor does not know whether the agent is on
// PostgreSQL, so it does not report a missing database file.
func TestDoctorInvalidConfiguration(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	for name, text := range map[string]string{datadir.FileConfig: "store: {postgres: 'postgres://db.example/mesh', nonsense: 1}\n", datadir.FileCard: "{}\n"} {
		if err := os.WriteFile(dir.Path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Examine(t.Context(), Options{Dir: dir, Source: config.Source{File: dir.Path(datadir.FileConfig)}}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Check == "store" {
			t.Errorf("found %+v", f)
		}
	}
}

// TestDoctorClockWithoutConfiguration: without a valid configuration, the clock is judged by the default time window.
func TestDoctorClockWithoutConfiguration(t *testing.T) {
	file := datadir.Dir(t.TempDir()).Path(datadir.FileConfig)
	if err := os.WriteFile(file, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := examination{opts: Options{Source: config.Source{File: file}}}
	if d.checkConfiguration() {
		t.Fatal("the configuration is valid")
	}
	d.checkClock("https://mesh.example.org/v1", time.Second)
	if last := d.findings[len(d.findings)-1]; last.Check != "clock" || last.State != findingOK {
		t.Errorf("found %+v", last)
	}
}

// TestDoctorDisk: min_free_disk has no effect on a process that stores in PostgreSQL.
func TestDoctorDisk(t *testing.T) {
	for database, state := range map[string]string{"": findingFail, "postgres://db.example/mesh": findingOK} {
		d := examination{dir: datadir.Dir(t.TempDir()), cfg: config.Default()}
		d.cfg.MinFreeDisk, d.cfg.Store.Postgres = 1<<62, config.Connection(database)
		d.checkDisk()
		if free, err := d.dir.FreeBytes(); err != nil || free < lowDisk {
			t.Skipf("%d bytes free: %v", free, err)
		}
		if len(d.findings) != 1 || d.findings[0].State != state {
			t.Errorf("with PostgreSQL %q: found %+v, want %s", database, d.findings, state)
		}
	}
}

// TestDoctorMailbox: an agent that no directory lists has no mailbox, which is not the fault of a proxy. If only a flag
// of serve names the mailbox, others reach the agent nevertheless.
func TestDoctorMailbox(t *testing.T) {
	directory := httptest.NewServer(http.NotFoundHandler())
	defer directory.Close()
	mailbox := directory.URL + "/v1/mailbox/am_a"
	d := examination{cfg: config.Default(), card: wire.Value{}.With("endpoint", wire.Text(mailbox)), status: &owner.Status{Endpoint: mailbox}}
	d.ok("configuration", "local profile")
	d.checkFlags(true)
	p := d.newPeer(true)
	defer p.Close()
	d.checkEndpoint(t.Context(), p)
	if f := d.findings[0]; f.State != findingWarn || !strings.Contains(f.Text, mailbox) {
		t.Errorf("found %+v", f)
	}
	if f := d.findings[1]; f.State != findingFail || !strings.Contains(f.Do, "see registration") {
		t.Errorf("found %+v", f)
	}
}

// TestDoctorDifferences: members that a directory adds, drops by rule or writes in another order do not count as
// differences.
func TestDoctorDifferences(t *testing.T) {
	parse := func(s string) wire.Value {
		v, err := wire.ParseObject([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	own := parse(`{"agent_id":"am_a","endpoint":"https://a.example/agentmesh","metadata":{"x":1,"y":2},"access_control":{"mode":"open","allowlist":["am_b"]}}`)
	for listed, want := range map[string]string{
		`{"agent_id":"am_a","endpoint":"https://a.example/agentmesh","metadata":{"y":2,"x":1},"registered_at":"2026-11-21T00:00:00Z"}`: "",
		`{"agent_id":"am_a","endpoint":"https://b.example/agentmesh","metadata":{"x":1,"y":2}}`:                                        "endpoint",
		`{"agent_id":"am_a"}`: "endpoint,metadata",
	} {
		if got := strings.Join(diffCards(own, parse(listed)), ","); got != want {
			t.Errorf("diffCards(%s) = %q, want %q", listed, got, want)
		}
	}
}

// TestDoctorAgentDoor: doctor says what the agent's door is worth, and warns where agent and owner are one user
// (THREATS row 48).
func TestDoctorAgentDoor(t *testing.T) {
	exec := []config.Hook{{Intent: "mesh.message", Exec: []string{"./hook"}}}
	other := []config.Hook{{Intent: "mesh.message", Exec: []string{"./hook"}, User: "nobody"}}
	openClaw := []config.Hook{{Intent: "mesh.message", OpenClaw: "http://127.0.0.1:1/hooks/agent"}}
	for _, tc := range []struct {
		name  string
		door  config.AgentDoor
		hooks []config.Hook
		state string
		text  string
	}{
		{"nothing", config.AgentDoor{}, nil, "", ""},
		{"hooks of the owner's user", config.AgentDoor{}, exec, findingWarn, "the same user"},
		{"hooks of the owner's user beside an agent of another", config.AgentDoor{Group: "agents", Socket: "/run/a.sock"}, exec, findingWarn, "the same user"},
		{"hooks of another user", config.AgentDoor{}, other, "", ""},
		{"OpenClaw without a door", config.AgentDoor{}, openClaw, findingWarn, "can approve"},
		{"one user", config.AgentDoor{Socket: "/run/a.sock"}, openClaw, findingWarn, "the same user"},
		{"another user", config.AgentDoor{Group: "agents", Socket: "/run/a.sock"}, other, findingOK, "decide nothing"},
	} {
		d := examination{cfg: config.Default()}
		d.cfg.AgentDoor, d.cfg.Hooks = tc.door, tc.hooks
		d.checkAgentDoor()
		switch {
		case tc.state == "" && len(d.findings) > 0:
			t.Errorf("%s: found %+v, want nothing", tc.name, d.findings)
		case tc.state != "" && (len(d.findings) != 1 || d.findings[0].State != tc.state || !strings.Contains(d.findings[0].Text, tc.text)):
			t.Errorf("%s: found %+v, want %s, %q", tc.name, d.findings, tc.state, tc.text)
		}
	}
}
