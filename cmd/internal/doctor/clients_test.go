package doctor

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestDoctorClients checks the finding for each client that the process may have seen.
func TestDoctorClients(t *testing.T) {
	forged, other := forgedAddr(), netip.MustParseAddr("203.0.113.9")
	if forged == forgedAddr() || !netip.MustParsePrefix("2001:db8::/32").Contains(forged) {
		t.Errorf("forgedAddr() = %v, want another documentation address each time", forged)
	}
	for _, tt := range []struct {
		seen  daemon.SeenClient
		proxy bool
		state string
		text  string
	}{
		{daemon.SeenClient{}, true, findingFail, "did not reach this process"},
		{daemon.SeenClient{Seen: true, Client: forged}, true, findingFail, "forged X-Forwarded-For is trusted"},
		{daemon.SeenClient{Seen: true, Unknown: true}, true, findingWarn, "does not name its clients"},
		{daemon.SeenClient{Seen: true, Unknown: true}, false, findingOK, "a tunnel hides the clients"},
		{daemon.SeenClient{Seen: true, Client: netip.MustParseAddr("127.0.0.1")}, true, findingWarn, "limits.exempt"},
		{daemon.SeenClient{Seen: true, Client: other}, true, findingOK, "distinguishes clients"},
		{daemon.SeenClient{Seen: true, Client: other}, false, findingOK, "distinguishes clients"},
	} {
		var d examination
		d.reportClient(tt.seen, forged, tt.proxy, 1)
		if len(d.findings) != 1 || d.findings[0].State != tt.state || !strings.Contains(d.findings[0].Text, tt.text) || (tt.state == findingOK) != (d.findings[0].Do == "") {
			t.Errorf("%+v: found %+v, want %s, %q", tt.seen, d.findings, tt.state, tt.text)
		}
	}
	var d examination
	if d.reportClient(daemon.SeenClient{}, forged, true, 3); d.findings[0].State != findingWarn || !goldentest.Says(t, "of three instances", d.findings[0].Text) {
		t.Errorf("of three instances: found %+v, want a warning", d.findings)
	}
}

// TestDoctorClientsOfAnotherVersion: if the status does not tell about clients, doctor opens no connection for the
// check.
func TestDoctorClientsOfAnotherVersion(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", httpapi.OwnerSocket(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := examination{dir: datadir.Dir(dir), status: &owner.Status{}}
	d.checkClients(t.Context(), "https://mesh.example.org")
	l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Millisecond))
	if conn, err := l.Accept(); err == nil {
		conn.Close()
		t.Error("doctor opened a connection that it does not need")
	}
}
