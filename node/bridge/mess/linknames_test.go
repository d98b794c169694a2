package mess

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestNamesStayAtTheirExchange: a claim through a link does not name the executor here, and a request from behind one
// link that was sent on through another one is withdrawn without the name of the participant that took it.
func TestNamesStayAtTheirExchange(t *testing.T) {
	base := t.TempDir()
	shed, barn := filepath.Join(base, "shed"), filepath.Join(base, "barn")
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.Links = []bridge.Link{
			{Name: "shed", Kind: Kind, Dir: shed, Options: map[string]string{"as": "us"}},
			{Name: "barn", Kind: Kind, Dir: barn, Options: map[string]string{"as": "us"}},
		}
	})
	home.executor("eve")
	side := func(name, dir string) *sharedFolder {
		r := &dirRemote{dir: dir, name: name}
		return &sharedFolder{t: t, home: home, side: func(string) *dirRemote { return r }}
	}
	carol := side("carol", shed)
	text := func(s *sharedFolder, there string) string {
		v, err := s.side("").view(t.Context(), there)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, m := range v.messages {
			out.Write(m.Mess.JSON())
		}
		return out.String()
	}

	claimed := carol.create("carol", "{id: mow, intent: mow the lawn}")
	home.status("eve", home.waitThread("mow the lawn"), "claimed")
	carol.waitRemoteState(claimed, thread.Claimed)
	if said := text(carol, claimed); strings.Contains(said, "eve") {
		t.Errorf("the other exchange gets the name of our executor: %s", said)
	}

	taken := carol.create("carol", "{id: dig, intent: dig a hole}")
	here := home.waitThread("dig a hole")
	neighbor := side("neighbor", barn)
	address := bridge.Address{Kind: Kind, Link: "barn", Peer: thread.ExchangeID}
	if err := home.bridge.offerTo(t.Context(), here, string(address.Pseudonym()), address.String(), nil); err != nil {
		t.Fatal(err)
	}
	onward := neighbor.only(neighbor.side(""))
	if err := side("dave", shed).side("").claim(t, taken); err != nil {
		t.Fatal(err)
	}
	carol.wakePoll()
	home.waitStatus(here, thread.Cancelled)
	neighbor.waitRemoteState(onward, thread.Cancelled)
	if said := text(neighbor, onward); strings.Contains(said, "dave") || !strings.Contains(said, "it is cancelled") {
		t.Errorf("the other exchange gets the name of a participant: %s", said)
	}
}

// TestLinkOptions: a misspelled option is refused, not ignored.
func TestLinkOptions(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		key, value string
		ok         bool
	}{{"as", "us", true}, {"git", "true", true}, {"git", "false", true}, {"git", "yes", false}, {"name", "us", false}} {
		link := bridge.Link{Name: "shed", Kind: Kind, Dir: t.TempDir(), Options: map[string]string{tc.key: tc.value}}
		_, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store), Links: []bridge.Link{link}})
		if (err == nil) != tc.ok {
			t.Errorf("%s: %s: %v", tc.key, tc.value, err)
		}
	}
}
