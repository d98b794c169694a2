package gateway

import (
	"testing"
)

// TestAddNode: the node of the process takes part under a name that no other participant has, with a token of its own.
func TestAddNode(t *testing.T) {
	rig := start(t, newLabConfig(t))
	lab := rig.G.Space("lab")
	for _, want := range []string{"node", "bob-2"} {
		token, err := lab.AddNode(map[string]string{"node": "node", "bob-2": "bob"}[want])
		if err != nil {
			t.Fatal(err)
		}
		if rec := rig.G.lookup(token); rec == nil || rec.Space != "lab" || rec.Name != want {
			t.Errorf("the token of %s admits %+v", want, rec)
		}
	}
	own := map[string]bool{}
	for _, p := range lab.View().Participants {
		own[p.Name] = p.Own
	}
	if own["bob"] || !own["bob-2"] {
		t.Errorf("own participants: %v", own)
	}
}
