//go:build slow

package moltspeak

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/store"
)

// TestPinsAreShared: an attacker that has the pins of all strangers loses one to each newcomer, except those with a
// conversation or a question.
func TestPinsAreShared(t *testing.T) {
	eachNetwork(t, func(t *testing.T, attacker func(int) []rate.Source) {
		r, _ := newTestRig(t, nil)
		begun := time.Now().Add(-time.Hour)
		var changes []store.Change
		for i := range maxStrangers - 2 {
			at := begun.Add(time.Duration(i) * time.Millisecond)
			changes = append(changes, peer{Name: evil(i), Key: self(cat).Key, First: at, Last: at, Sources: attacker(i)}.change())
		}
		for ; len(changes) > 0; changes = changes[min(500, len(changes)):] {
			if err := r.b.records.Apply(t.Context(), changes[:min(500, len(changes))], time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		ping := func(sources []rate.Source, peer string) message.Code {
			return r.codeFrom(sources, peer, r.draft(peer, message.OpPing, `{"nonce":1}`))
		}
		pinned := func(peer string) bool {
			_, known, err := r.b.pins.get(t.Context(), peer, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return known
		}
		const talker, asker, friend = "talker@flood", "asker@flood", "friend@home"
		if code := r.codeFrom(attacker(1), talker, r.draft(talker, message.OpQuery, plainQuery)); code != "" {
			t.Fatal(code)
		}
		request := `{"action":"request","data_types":["email"],"purpose":"x","duration":"session"}`
		if code := r.codeFrom(attacker(2), asker, r.draft(asker, message.OpConsent, request)); code != "" {
			t.Fatal(code)
		}
		if code := ping(attacker(3), "late@flood"); code != message.CodeRateLimit {
			t.Errorf("one more pin of the attacker: %q", code)
		}
		for i := range 8 {
			if code := ping(hosted(i), fmt.Sprintf("hosted%d@provider", i)); code != "" {
				t.Errorf("agent %d at a hosting provider: %s", i, code)
			}
		}
		if code := ping(newcomer, "newcomer@x"); code != "" || !pinned("newcomer@x") {
			t.Errorf("the newcomer: %q", code)
		}
		if pinned(evil(maxStrangers-3)) || !pinned(evil(0)) || !pinned(talker) || !pinned(asker) {
			t.Error("not the attacker's newest pins gave way")
		}
		if err := acl.NewRules(r.store.Records(), acl.Policy{}).Set(t.Context(), "moltspeak:inbound/"+friend, acl.Approved, time.Now()); err != nil {
			t.Fatal(err)
		}
		if code := ping(attacker(3), friend) + ping(attacker(3), cat); code != "" {
			t.Errorf("known peers: %s", code)
		}
	})
}
