package rules

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestMandate: which appointments the owner's agent makes alone under a hold rule.
func TestMandate(t *testing.T) {
	theirs := func(place string) *conversations.Proposal {
		return &conversations.Proposal{By: conversations.Theirs, Terms: conversations.Terms{Location: place}}
	}
	for _, tt := range []struct {
		name   string
		change func(a *Appointment, m *acl.Mandate)
		within bool
	}{
		{"accept", func(*Appointment, *acl.Mandate) {}, true},
		{"propose", func(a *Appointment, _ *acl.Mandate) { a.Action, a.Theirs = "propose", nil }, true},
		{"counter", func(a *Appointment, _ *acl.Mandate) { a.Action = "counter" }, true},
		{"cancel", func(a *Appointment, _ *acl.Mandate) { a.Action = "cancel" }, false},
		{"an action that nobody knows", func(a *Appointment, _ *acl.Mandate) { a.Action = "okay" }, false},
		{"another peer", func(a *Appointment, _ *acl.Mandate) { a.Peer = "am_ann" }, false},
		{"too long", func(a *Appointment, _ *acl.Mandate) { a.Terms.Duration = "61m" }, false},
		{"no length", func(a *Appointment, _ *acl.Mandate) { a.Terms.Duration = "" }, false},
		{"a length that nobody can read", func(a *Appointment, _ *acl.Mandate) { a.Terms.Duration = "a while" }, false},
		{"busy", func(a *Appointment, _ *acl.Mandate) { a.Free = false }, false},
		{"busy, without a calendar in the rule", func(a *Appointment, m *acl.Mandate) { a.Free, m.Calendar = false, "" }, true},
		{"enough for today", func(a *Appointment, _ *acl.Mandate) { a.Spent = true }, false},
		{"their place", func(a *Appointment, _ *acl.Mandate) { a.Terms.Location, a.Theirs = "my cellar", theirs("my cellar") }, false},
		{"their place, in the list", func(a *Appointment, m *acl.Mandate) {
			a.Terms.Location, a.Theirs, m.Places = "Sightglass", theirs("Sightglass"), []string{"Sightglass"}
		}, true},
		{"their place, without a place in the rule", func(a *Appointment, m *acl.Mandate) {
			a.Terms.Location, a.Theirs, m.Place = "my cellar", theirs("my cellar"), ""
		}, true},
		{"our place, which they repeat", func(a *Appointment, _ *acl.Mandate) {
			a.Terms.Location, a.Theirs = "our office", theirs("our office")
			a.Before = &conversations.Proposal{Terms: conversations.Terms{Location: "our office"}}
		}, true},
		{"our place instead of theirs", func(a *Appointment, _ *acl.Mandate) {
			a.Action, a.Terms.Location, a.Theirs = "counter", "our office", theirs("my cellar")
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := Appointment{Peer: "am_bob", Action: "accept", Terms: conversations.Terms{Duration: "1h"}, Theirs: theirs(""), Free: true}
			m := acl.Mandate{Peers: []string{"am_bob"}, Calendar: "free", Length: time.Hour, PerPeerDay: 2, Place: "ours"}
			tt.change(&a, &m)
			if got := a.IsWithin(m); got != tt.within {
				t.Errorf("%t, want %t", got, tt.within)
			}
		})
	}
}

// TestMandateOfBothDirections: a proposal of a named peer goes to the agent, and what our agent sends waits unless it keeps
// to the mandate.
func TestMandateOfBothDirections(t *testing.T) {
	policy := acl.Policy{Mode: acl.Open, Hold: []acl.HoldRule{{Intent: "mesh.schedule", Hold: acl.Always, Name: "short meetings", Unless: acl.Mandate{Peers: []string{"am_bob"}, Length: time.Hour, PerPeerDay: 1}}}}
	for peer, want := range map[string]Action{"am_bob": Inbox, "am_ann": Hold} {
		s, m := state(), in()
		s.Policy, s.Supported = policy, true
		m.Principal, m.Peer, m.Intent, m.Payload = peer, wire.AgentID(peer), wire.Schedule, payload("action", "decline")
		if v := Decide(s, m); v.Do != want {
			t.Errorf("%s: %s, want %s", peer, v.Do, want)
		}
	}
	d := Departure{Intents: []wire.Intent{wire.Schedule}, Handled: []bool{true}, Payload: payload("action", "accept"), Mode: acl.Open, Policy: policy}
	for within, a := range map[bool]*Appointment{true: {Peer: "am_bob", Action: "accept", Terms: conversations.Terms{Duration: "1h"}}, false: nil} {
		d.Appointment = a
		p, err := Leave(d)
		if err != nil || p.NeedsOwner == within || within != (p.Mandate != nil && p.Mandate.Name == "short meetings") {
			t.Errorf("within %t: %+v, %v", within, p, err)
		}
	}
	d.Appointment, d.Spent = &Appointment{Peer: "am_bob", Action: "accept", Terms: conversations.Terms{Duration: "1h"}}, InConversation
	if p, _ := Leave(d); !p.NeedsOwner || p.Mandate != nil {
		t.Errorf("at a bound on turns: %+v", p)
	}
}
