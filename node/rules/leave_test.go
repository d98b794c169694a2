package rules

import (
	"errors"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestLeave has a row for each rule about a message of ours. Each row changes what it names in a text to a stranger.
func TestLeave(t *testing.T) {
	deal := func(d *Departure, action string) {
		d.Intents, d.Payload = []wire.Intent{wire.Negotiate}, payload("action", action)
	}
	tests := []struct {
		name string
		with func(*Departure)
		want Permission
		err  error
	}{
		{"a text", func(*Departure) {}, Permission{Rule: "outgoing.mode=open"}, nil},
		{"blocked", func(d *Departure) { d.Standing, d.Listed = acl.Blocked, true }, Permission{}, ErrBlocked},
		{"not on the list", func(d *Departure) { d.Mode = acl.Allowlist }, Permission{}, ErrOutbound},
		{"on the list", func(d *Departure) { d.Mode, d.Listed = acl.Allowlist, true }, Permission{Rule: "outgoing.allow"}, nil},
		{"a close of a blocked peer", func(d *Departure) {
			d.Standing, d.Payload = acl.Blocked, payload("action", "close", "status", "failed")
		}, Permission{}, ErrBlocked},
		{"a close decides nothing", func(d *Departure) { d.Mode, d.Payload = acl.Approval, payload("action", "close", "status", "failed") }, Permission{Rule: "close"}, nil},
		{"a close with words", func(d *Departure) {
			d.Mode, d.Payload = acl.Approval, payload("action", "close", "status", "failed", "reason", "no")
		}, Permission{NeedsOwner: true, Rule: "outgoing.mode=approval", AllowAlways: true}, nil},
		{"unproven key", func(d *Departure) { d.Unproven, d.Listed = true, true }, Permission{NeedsOwner: true, Rule: owner.RuleUnproven}, nil},
		{"an intent that the owner sees first", func(d *Departure) { d.Approve, d.Listed = []string{"mesh.*"}, true }, Permission{NeedsOwner: true, Rule: "outgoing.approve=mesh.*"}, nil},
		{"an accept", func(d *Departure) { deal(d, "accept"); d.Listed = true }, Permission{NeedsOwner: true, Rule: "hold=mesh.negotiate"}, nil},
		{"an accept that calls itself a text", func(d *Departure) {
			d.Payload, d.Intents, d.Handled = payload("action", "accept"), []wire.Intent{wire.Deliver, wire.Negotiate}, []bool{false, false}
		}, Permission{NeedsOwner: true, Rule: "hold=mesh.negotiate"}, nil},
		{"a turn too many", func(d *Departure) { d.Spent, d.Listed = InConversation, true }, Permission{NeedsOwner: true, Rule: "autonomy.conversation", Reason: "your agent has no turn left without you", Bound: InConversation}, nil},
		{"a rejection", func(d *Departure) { deal(d, "reject") }, Permission{Rule: "outgoing.mode=open"}, nil},
		{"a custom intent that nothing of ours handles", func(d *Departure) { d.Intents = []wire.Intent{"com.example.boat"} }, Permission{NeedsOwner: true, Rule: "hold=com.example.boat"}, nil},
		{"a custom intent that a hook handles", func(d *Departure) {
			d.Intents, d.Handled = []wire.Intent{"com.example.boat"}, []bool{true}
		}, Permission{Rule: "outgoing.mode=open"}, nil},
		{"a new recipient", func(d *Departure) { d.Mode = acl.Approval }, Permission{NeedsOwner: true, Rule: "outgoing.mode=approval", AllowAlways: true}, nil},
		{"a recipient that the owner approved", func(d *Departure) { d.Mode, d.Remembered = acl.Approval, acl.Approved }, Permission{Rule: "recipient=approved"}, nil},
		{"an accept to it", func(d *Departure) {
			d.Mode, d.Remembered = acl.Approval, acl.Approved
			deal(d, "accept")
		}, Permission{NeedsOwner: true, Rule: "hold=mesh.negotiate"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Departure{Intents: []wire.Intent{wire.Deliver}, Handled: []bool{false}, Payload: in().Payload, Mode: acl.Open}
			tt.with(&d)
			got, err := Leave(d)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%+v, %v, want %+v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}
