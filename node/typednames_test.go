package node_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTypedNames: the owner may type a recipient as it is shown: the name that a peer gives itself, an alias, the beginning
// of an id with an ellipsis. Several matches are never guessed, and no rule follows a name that anybody can take.
func TestTypedNames(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", nil)
	write := func(name string) wire.AgentID {
		s := mesh.Stranger(name)
		must(t, meshtest.Post(t, sarah.URL, s.Sign(s.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		return s.ID
	}
	chris, twin, other, bad, idLike := write("Chris O'Neil"), write("Twin"), write("twin"), write("Bad"), write("am_chris")
	api := sarah.OwnerAPI()
	change := func(name string, c owner.PeerChange) error {
		_, err := api.ChangePeer(t.Context(), name, c, "test")
		return err
	}
	for id, c := range map[wire.AgentID]owner.PeerChange{twin: {Action: "alias", Alias: "first"}, bad: {Action: "block"}} {
		if err := change(string(id), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		typed string
		want  wire.AgentID
		err   string
	}{
		{"Chris O'Neil", chris, ""},
		{" chris o'neil ", chris, ""},
		{`"Chris O'Neil"`, chris, ""},
		{"“Chris O'Neil”", chris, ""},
		{string(chris), chris, ""},
		{owner.ShortID(string(chris)), chris, ""},
		{string(chris[:12]), chris[:12], ""}, // a valid id of another agent
		{"first", twin, ""},
		{"First", twin, ""},
		{"Twin", other, ""}, // the other one is shown by its alias
		{"Bad", "", "no such peer"},
		{"am_chris", "am_chris", ""}, // the agent with this id, not the one that took it as its name
		{"am_chris…", "", "no such peer"},
		{"am_…", "", "4 peers are called that"},
		{"", "", "no such peer"},
		{"…", "", "no such peer"},
		{"Chris", "", "no such peer"},
	} {
		got, err := sarah.Peer(t.Context(), tc.typed)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q is %s %v, want %s %s", tc.typed, got, err, tc.want, tc.err)
		}
	}
	if idLike == "am_chris" {
		t.Fatal("the name became the id")
	}
	again := write("CHRIS O'NEIL")
	if _, err := sarah.Peer(t.Context(), "Chris O'Neil"); err == nil || !strings.Contains(err.Error(), string(chris)) || !strings.Contains(err.Error(), string(again)) {
		t.Errorf("with two of that name: %v", err)
	}
	if err := change("Bad", owner.PeerChange{Action: "allow"}); err == nil {
		t.Error("a rule follows a name that anybody can take")
	}
}
