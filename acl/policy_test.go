package acl_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAdmit checks line 11 of the receive table, every mode with every standing (AM-25, AM-29, AM-30, AM-35).
func TestAdmit(t *testing.T) {
	no, rejected := wire.ErrNotAllowed, wire.ErrOwnerRejected
	type want struct {
		verdict acl.Verdict
		err     error
	}
	in, hold := want{acl.Admitted, nil}, want{acl.HoldSender, nil}
	for _, tt := range []struct {
		mode       acl.Mode
		standing   acl.Standing
		want       want
		wroteFirst want
	}{
		{acl.Open, acl.Unknown, in, in},
		{acl.Open, acl.Allowed, in, in},
		{acl.Open, acl.Approved, in, in},
		{acl.Open, acl.Rejected, want{0, rejected}, in},
		{acl.Open, acl.Blocked, want{0, no}, want{0, no}},

		{acl.Allowlist, acl.Unknown, want{0, no}, in},
		{acl.Allowlist, acl.Allowed, in, in},
		{acl.Allowlist, acl.Approved, want{0, no}, in}, // stored approvals are ignored
		{acl.Allowlist, acl.Rejected, want{0, no}, in},
		{acl.Allowlist, acl.Blocked, want{0, no}, want{0, no}},

		{acl.Approval, acl.Unknown, hold, in},
		{acl.Approval, acl.Allowed, in, in},
		{acl.Approval, acl.Approved, in, in},
		{acl.Approval, acl.Rejected, want{0, rejected}, in},
		{acl.Approval, acl.Blocked, want{0, no}, want{0, no}},

		{"", acl.Unknown, hold, in}, // approval is the default
	} {
		p := acl.Policy{Mode: tt.mode}
		for wroteFirst, want := range map[bool]want{false: tt.want, true: tt.wroteFirst} {
			got, err := p.Admit(tt.standing, wroteFirst)
			if got != want.verdict || !errors.Is(err, want.err) {
				t.Errorf("mode %q: Admit(%q, wrote first %v) = %v, %v, want %v, %v",
					tt.mode, tt.standing, wroteFirst, got, err, want.verdict, want.err)
			}
		}
	}
}

func TestHoldIntent(t *testing.T) {
	const custom = wire.Intent("com.example.pay")
	owner := acl.Policy{Hold: []acl.HoldRule{
		{Intent: "mesh.negotiate", Actions: []string{"counter"}, Hold: acl.Never},
		{Intent: "mesh.message", Hold: acl.Always},
		{Intent: "com.example.pay", Hold: acl.Always},
		{Intent: "com.example.*", Hold: acl.Never},
		{Intent: "mesh.handoff", Hold: acl.Never},
	}}
	for _, tt := range []struct {
		name    string
		policy  acl.Policy
		intent  wire.Intent
		action  string
		handled bool
		answers bool
		want    bool
	}{
		{"negotiate propose", acl.Policy{}, wire.Negotiate, "propose", true, false, true},
		{"negotiate counter", acl.Policy{}, wire.Negotiate, "counter", true, false, true},
		{"negotiate accept", acl.Policy{}, wire.Negotiate, "accept", true, false, true},
		{"negotiate reject", acl.Policy{}, wire.Negotiate, "reject", true, false, false},
		{"negotiate withdraw", acl.Policy{}, wire.Negotiate, "withdraw", true, false, false},
		{"handoff", acl.Policy{}, wire.Handoff, "request_human", true, false, true},
		{"handoff, answered", acl.Policy{}, wire.Handoff, wire.ActionReceived, true, true, false},
		{"handoff, says it is an answer", acl.Policy{}, wire.Handoff, wire.ActionReceived, true, false, true},
		{"custom, says it is an answer", acl.Policy{}, custom, wire.ActionPending, false, false, true},
		{"schedule", acl.Policy{}, wire.Schedule, "propose", false, false, false},
		{"message", acl.Policy{}, wire.Deliver, "deliver", false, false, false},
		{"custom", acl.Policy{}, custom, "start", false, false, true},
		{"custom without action", acl.Policy{}, custom, "", false, false, true},
		{"custom with a hook", acl.Policy{}, custom, "start", true, false, false},
		{"close is never held", acl.Policy{}, custom, wire.ActionClose, false, false, false},

		{"owner: action never", owner, wire.Negotiate, "counter", false, false, false},
		{"owner: other action", owner, wire.Negotiate, "propose", false, false, true},
		{"owner: always", owner, wire.Deliver, "deliver", true, false, true},
		{"owner: first rule wins", owner, custom, "start", true, false, true},
		{"owner: later pattern", owner, "com.example.ping", "start", false, false, false},
		{"owner: always holds every action", owner, custom, wire.ActionReceived, true, true, true},
		{"owner: handoff never", owner, wire.Handoff, "request_human", false, false, false},
		{"owner: close is never held", owner, wire.Deliver, wire.ActionClose, true, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.HoldIntent(tt.intent, tt.action, tt.handled, tt.answers); got != tt.want {
				t.Errorf("HoldIntent(%s, %q, handled %v, answers %v) = %v, want %v", tt.intent, tt.action, tt.handled, tt.answers, got, tt.want)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "mesh.schedule", true},
		{"*", "", true},
		{"mesh.schedule", "mesh.schedule", true},
		{"mesh.schedule", "mesh.scheduler", false},
		{"mesh.schedule", "Mesh.schedule", false},
		{"com.example.*", "com.example.pay", true},
		{"com.example.*", "com.example.", true},
		{"com.example.*", "com.example", false},
		{"com.example.*", "com.examples.pay", false},
		{"", "", true},
		{"", "x", false},
	} {
		if got := acl.Match(tt.pattern, tt.s); got != tt.want {
			t.Errorf("Match(%q, %q) = %v, want %v", tt.pattern, tt.s, got, tt.want)
		}
	}
}

// TestMatchHostile checks that no input makes matching slow, because a pattern is a single prefix (THREATS row 20).
func TestMatchHostile(t *testing.T) {
	pattern, s := strings.Repeat("a*", 32<<10), strings.Repeat("a", 64<<10)+"b"
	took := time.Hour // the shortest of many runs, because the machine may be busy
	for range 100 {
		began := time.Now()
		if acl.Match(pattern, s) {
			t.Fatal("a prefix that is not there matched")
		}
		took = min(took, time.Since(began))
	}
	if took > time.Millisecond {
		t.Errorf("a match took %v, want under 1 ms", took)
	}
}

func TestMatchProperties(t *testing.T) {
	name := rapid.StringMatching(`[a-z.]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		prefix, rest := name.Draw(t, "prefix"), name.Draw(t, "rest")
		if !acl.Match(prefix+"*", prefix+rest) {
			t.Errorf("Match(%q, %q) = false", prefix+"*", prefix+rest)
		}
		if rest != "" && acl.Match(prefix, prefix+rest) {
			t.Errorf("Match(%q, %q) = true", prefix, prefix+rest)
		}
	})
}

// TestValidPattern: a pattern is an intent, a prefix of intents, or all intents.
func TestValidPattern(t *testing.T) {
	for pattern, valid := range map[string]bool{"*": true, "com.example.*": true, "com.*.pay": false, "com.**": false, "": false, "com example": false} {
		if err := acl.ValidPattern(pattern); (err == nil) != valid {
			t.Errorf("ValidPattern(%q) = %v", pattern, err)
		}
	}
}
