package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestNothingCrosses: nothing that happens in one space is visible in another space with the same names (MEW-20).
func TestNothingCrosses(t *testing.T) {
	r := start(t, SpaceConfig{ID: "unused"})
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		var spaces [2]*Space
		var feeds [2]*view.Feed
		for i := range spaces {
			all := []capability.Capability{mustCapability(`{"kind":"*"}`)}
			s, err := r.G.newSpace(SpaceConfig{ID: fmt.Sprintf("s%d-%d", i, round), Participants: []Participant{
				{Name: "a", Capabilities: all}, {Name: "b", Capabilities: all},
			}})
			if err != nil {
				t.Fatal(err)
			}
			spaces[i], feeds[i] = s, s.Watch()
			defer feeds[i].Close()
		}
		kinds := []string{"chat", "mcp/proposal", "stream/request", "stream/close", "capability/grant", "space/invite", "participant/pause", "participant/resume", "acme/own"}
		for n := range rapid.IntRange(1, 10).Draw(t, "steps") {
			i := rapid.IntRange(0, 1).Draw(t, "space")
			mark := fmt.Sprintf("mark-%d-%d", i, n)
			payload := wire.Obj(wire.TextField("text", mark), wire.TextField("stream_id", "stream-1"), wire.TextField("recipient", "b"),
				wire.TextField("participant_id", rapid.SampledFrom([]string{"a", "b", mark}).Draw(t, "participant")),
				wire.Field("capabilities", wire.Arr(wire.Text("chat"))), wire.Field("initial_capabilities", wire.Arr()))
			e := wire.Obj(wire.TextField("id", mark), wire.TextField("kind", rapid.SampledFrom(kinds).Draw(t, "kind")), wire.Field("payload", payload),
				wire.Field("to", wire.Texts([]string{rapid.SampledFrom([]string{"a", "b", "gateway"}).Draw(t, "to")})))
			by := spaces[i].members.byName[rapid.SampledFrom([]string{"a", "b"}).Draw(t, "by")]
			spaces[i].receive(by, e.JSON(), "http")
		}
		for i, s := range spaces {
			foreign := fmt.Sprintf("mark-%d-", 1-i)
			seen, _ := s.out.history.since(time.Time{}, s.members.byName["a"], maxPoll)
			for len(feeds[i].C()) > 0 {
				seen = append(seen, wire.Text(string(<-feeds[i].C())))
			}
			state := fmt.Sprintf("%+v", s.View())
			if strings.Contains(string(wire.Arr(seen...).JSON()), foreign) || strings.Contains(state, foreign) {
				t.Fatalf("space %d saw something of the other", i)
			}
		}
	})
}

// TestRevokedAtOnce: a capability that was revoked, by grant id or by pattern, does not work for the next envelope
// (MEW-25).
func TestRevokedAtOnce(t *testing.T) {
	r := start(t, SpaceConfig{ID: "unused"})
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		s, err := r.G.newSpace(SpaceConfig{ID: fmt.Sprintf("r%d", round), Participants: []Participant{
			{Name: "boss", Capabilities: []capability.Capability{mustCapability(`{"kind":"*"}`)}}, {Name: "worker", Capabilities: []capability.Capability{}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		kind := rapid.SampledFrom([]string{"a/x", "a/y", "b"}).Draw(t, "kind")
		granted := rapid.SampledFrom([]string{kind, "*", "**", "a/*", "a/**", "b"}).Draw(t, "granted")
		pattern := rapid.SampledFrom([]string{"", granted, "*", "**"}).Draw(t, "pattern")
		do := func(who, envelope string) string { return say(s, who, envelope) }
		for g := range rapid.IntRange(1, 3).Draw(t, "grants") {
			if got := do("boss", grantTo(fmt.Sprintf("g%d", g), "worker", `{"kind":"`+granted+`"}`)); got != "" {
				t.Fatalf("granting %s: %s", granted, got)
			}
		}
		try := `{"kind":"` + kind + `","payload":{}}`
		before := do("worker", try)
		revoke := `{"kind":"capability/revoke","payload":{"recipient":"worker","capabilities":["` + pattern + `"]}}`
		if pattern == "" {
			for g := range 3 {
				do("boss", fmt.Sprintf(`{"kind":"capability/revoke","payload":{"recipient":"worker","grant_id":"g%d"}}`, g))
			}
		} else if got := do("boss", revoke); got != "" {
			t.Fatalf("revoking %s: %s", pattern, got)
		}
		if after := do("worker", try); after != "capability_violation" {
			t.Fatalf("%s was granted, %q revoked: %s was %q before and is %q now", granted, pattern, kind, before, after)
		}
	})
}
