package mew

import (
	"testing"
)

// TestAudience: a chat reaches the participants that are connected, and the owner learns who is not.
func TestAudience(t *testing.T) {
	r := start(t)
	cat, bob := r.Join("cat-token"), r.Join("bob-token")
	linked := newJoinedSpace(startLink(t, r).Spaces()[0])
	for name, s := range map[string]*ownerSpace{"link": linked, "hosted": newHostedSpace(r.G.Space("lab"))} {
		others := map[string]int{"link": 2, "hosted": 3}[name] // the node is in the audience of the hosted space
		for to, absent := range map[string]int{`[]`: 0, `["cat","bob"]`: 0, `["cat","bird"]`: 1} {
			got := s.findAudience([]byte(`{"kind":"chat","to":` + to + `,"payload":{"text":"hello"}}`))
			if got.listeners != others || len(got.absent) != absent {
				t.Errorf("%s: chat to %s: %+v, want %d listeners and %d absent", name, to, got, others, absent)
			}
		}
		_, body, err := audience{0, []string{"bird"}}.addTo(200, []byte(`{"id":"x","n":1.0}`), nil)
		if want := `{"id":"x","n":1.0,"listeners":0,"absent":["bird"]}`; err != nil || string(body) != want {
			t.Errorf("%s, %v, want %s", body, err, want)
		}
	}
	cat.Quit()
	bob.Quit()
	await(t, func() bool {
		return linked.findAudience([]byte(`{"kind":"chat","payload":{"text":"hello"}}`)).listeners == 0
	})
}
