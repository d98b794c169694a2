package gateway

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// newQuietSpace returns a space without listener or goroutine, for a synctest bubble.
func newQuietSpace(t *testing.T, sc SpaceConfig) *Space {
	t.Helper()
	st, err := bolt.Open(t.Context(), t.TempDir()+"/mew.db", bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	g, err := New(t.Context(), Config{Spaces: []SpaceConfig{sc}, Records: st.Records(), Audit: acl.NewAudit(st.Records(), acl.AuditConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	return g.order[0]
}

// say sends an envelope of a member and returns the name of the refusal, or "".
func say(s *Space, name, envelope string) string {
	_, fault := s.receive(s.members.byName[name], []byte(envelope), "http")
	if fault == nil {
		return ""
	}
	return fault.Payload.GetStr("error")
}

// countingRecords counts the units that are stored.
type countingRecords struct {
	store.Records
	units int
}

func (r *countingRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	r.units++
	return r.Records.Apply(ctx, changes, now)
}

// TestControlOfMany: the audit entries of one pause or shutdown are stored in one unit, however many participants it
// names, because the space waits for the disk meanwhile.
func TestControlOfMany(t *testing.T) {
	sc := newLabConfig(t)
	for n := range envelope.MaxList {
		sc.Participants = append(sc.Participants, Participant{Name: fmt.Sprintf("p%d", n)})
	}
	s := newQuietSpace(t, sc)
	records := &countingRecords{Records: s.gatewayCfg.Records}
	s.gatewayCfg.Audit = acl.NewAudit(records, acl.AuditConfig{})
	var to []string
	for n := range envelope.MaxList {
		to = append(to, fmt.Sprintf("p%d", n))
	}
	for _, kind := range []string{"pause", "shutdown"} {
		records.units = 0
		say(s, "admin", `{"kind":"participant/`+kind+`","to":["`+strings.Join(to, `","`)+`"]}`)
		if records.units != 1 {
			t.Errorf("%s: %d units were stored, want 1", kind, records.units)
		}
	}
	list, _, err := s.gatewayCfg.Audit.List(t.Context(), acl.AuditFilter{Kind: "mew"}, 0, 5*envelope.MaxList, time.Now())
	if err != nil || len(list) != 2*envelope.MaxList {
		t.Errorf("%d entries, %v, want one for each participant and envelope", len(list), err)
	}
}

// TestPause: a pause refuses everything except envelopes that end or answer something, until its timeout or until
// another participant resumes. It refuses stream frames too (MEW-37).
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newQuietSpace(t, newLabConfig(t))
		say(s, "alice", `{"kind":"stream/request","payload":{}}`)
		if got := say(s, "admin", `{"kind":"participant/pause","to":["alice"],"payload":{"timeout_seconds":60}}`); got != "" {
			t.Fatal(got)
		}
		for kind, want := range map[string]string{
			`"chat"`: "participant_paused", `"mcp/proposal"`: "participant_paused", `"reasoning/start"`: "participant_paused",
			`"stream/request"`: "participant_paused", `"participant/restart"`: "participant_paused",
			`"participant/status"`: "", `"participant/resume","to":["alice"]`: "", `"participant/request-status"`: "", `"participant/clear"`: "",
			`"participant/forget"`: "", `"participant/compact-done"`: "", `"chat/acknowledge","correlation_id":["x"]`: "",
			`"chat/cancel","correlation_id":["x"]`: "", `"reasoning/cancel","context":"x"`: "", `"mcp/withdraw","correlation_id":["x"]`: "",
		} {
			if got := say(s, "alice", `{"kind":`+kind+`,"payload":{}}`); got != want {
				t.Errorf("paused, %s: %q, want %q", kind, got, want)
			}
		}
		if f := s.checkFrame(s.members.byName["alice"], "stream-1", 1, []byte("#stream-1#x")); f == nil || f.Reason != "participant_paused" {
			t.Errorf("a frame of a paused participant: %v", f)
		}
		time.Sleep(59 * time.Second)
		if got := say(s, "alice", `{"kind":"chat"}`); got != "participant_paused" {
			t.Errorf("after 59 s: %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := say(s, "alice", `{"kind":"chat"}`); got != "" {
			t.Errorf("after the timeout: %q", got)
		}
		say(s, "admin", `{"kind":"participant/pause","to":["alice"]}`)
		time.Sleep(24 * time.Hour)
		if got := say(s, "alice", `{"kind":"chat"}`); got != "participant_paused" {
			t.Errorf("without a timeout: %q", got)
		}
		say(s, "bob", `{"kind":"participant/resume","to":["alice"]}`)
		if got := say(s, "alice", `{"kind":"chat"}`); got != "" {
			t.Errorf("after a resume: %q", got)
		}
		say(s, "admin", `{"kind":"participant/pause","payload":{}}`)
		if got := say(s, "bob", `{"kind":"chat"}`); got != "" {
			t.Errorf("a pause of nobody paused somebody: %q", got)
		}
		for _, bad := range []string{`-1`, `0`, `"60"`, `true`} {
			if got := say(s, "admin", `{"kind":"participant/pause","to":["bob"],"payload":{"timeout_seconds":`+bad+`}}`); got == "" {
				t.Errorf("timeout_seconds %s was taken", bad)
			}
		}
		if got := say(s, "admin", `{"kind":"participant/pause","to":["bob"],"payload":{"timeout_seconds":1e300}}`); got != "" {
			t.Errorf("a long pause: %s", got)
		}
	})
}

// TestShutdown: a shutdown silences a participant until it joins again (MEW-42).
func TestShutdown(t *testing.T) {
	r := start(t, newLabConfig(t))
	admin, alice := r.Join("admin-token"), r.Join("alice-token")
	admin.Send(`{"kind":"participant/shutdown","to":["alice"]}`)
	alice.Until("participant/shutdown")
	alice.Send(`{"kind":"chat","payload":{}}`)
	if e := alice.Want("system/error"); string(mewtest.Payload(e).JSON()) != `{"error":"participant_shutdown"}` {
		t.Errorf("got %s", e.JSON())
	}
	alice.Send(`{"kind":"participant/status","payload":{"messages_in_context":0}}`)
	alice.Want("participant/status")
	alice.Send(`{"type":"join"}`) // a join on the same connection does not count
	alice.Want("system/welcome")
	alice.Send(`{"kind":"chat","payload":{}}`)
	alice.Want("system/error")
	if status, body := r.Post("alice", "alice-token", `{"kind":"chat"}`); status != 403 || body != `{"error":"participant_shutdown"}` {
		t.Errorf("by HTTP: %d %s", status, body)
	}
	r.Join("alice-token").Fence()
}

// TestWithdraw: the proposer may withdraw a proposal; anybody may withdraw one that the space does not remember
// (MEW-13). The number of remembered proposals is bounded.
func TestWithdraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newQuietSpace(t, newLabConfig(t))
		say(s, "alice", `{"id":"p1","kind":"mcp/proposal","payload":{}}`)
		withdraw := `{"kind":"mcp/withdraw","correlation_id":["p1"],"payload":{"reason":"no_longer_needed"}}`
		if got := say(s, "bob", withdraw); got != "not_proposer" {
			t.Errorf("bob withdraws alice's: %q", got)
		}
		if got := say(s, "alice", withdraw); got != "" {
			t.Errorf("alice withdraws her own: %q", got)
		}
		say(s, "bob", `{"id":"p1","kind":"mcp/proposal","payload":{}}`) // ids repeat
		for _, name := range []string{"alice", "bob"} {
			if got := say(s, name, withdraw); got != "" {
				t.Errorf("%s withdraws: %q", name, got)
			}
		}
		time.Sleep(view.KeepProposals + time.Minute)
		s.tick(time.Now())
		if len(s.proposals.proposers) != 0 || len(s.proposals.order) != 0 {
			t.Errorf("%d proposals are remembered after a day", len(s.proposals.order))
		}
		m := s.members.byName["alice"]
		for i := range maxProposals + 10 {
			p := &submission{by: m, Envelope: envelope.Envelope{ID: strconv.Itoa(i)}}
			s.proposals.remember(p)
		}
		if len(s.proposals.proposers) != maxProposals || len(s.proposals.order) != maxProposals {
			t.Errorf("%d proposals are remembered, want at most %d", len(s.proposals.order), maxProposals)
		}
	})
}

// TestForgottenProposals: the gateway forgets a proposal with its id, even if a participant repeats the id of the
// oldest one when there are too many.
func TestForgottenProposals(t *testing.T) {
	var ps proposals
	remember := func(id, name string) {
		if fault := ps.remember(&submission{Envelope: envelope.Envelope{ID: id}, by: &member{name: name}}); fault != nil {
			t.Fatal(fault)
		}
	}
	for n := range maxProposals {
		remember(strconv.Itoa(n), "alice")
	}
	remember("0", "bob")
	if got := ps.proposers["0"]; len(got) != 1 || got[0] != "bob" {
		t.Errorf("the proposers are %v, want bob", got)
	}
	ps.drop(len(ps.order))
	if len(ps.proposers) != 0 {
		t.Errorf("%d ids are left, want none", len(ps.proposers))
	}
}

// TestOperator: the owner sees pending proposals and decides them (MEW-L7). Capabilities do not bind the owner, but the
// rules do.
func TestOperator(t *testing.T) {
	r := start(t, newLabConfig(t))
	s := r.G.Space("lab")
	alice := r.Join("alice-token")
	feed := s.Watch()
	defer feed.Close()
	alice.Send(`{"id":"p1","kind":"mcp/proposal","to":["owner","bob"],"payload":{"method":"tools/call","params":{"name":"x"}}}`,
		`{"id":"r1","kind":"reasoning/start","payload":{"message":"…"}}`)
	alice.Fence()
	st := s.View()
	if len(st.Proposals) != 1 || st.Proposals[0].ID != "p1" || len(st.Reasoning) != 1 || st.Reasoning[0].From != "alice" {
		t.Errorf("status %+v", st)
	}
	if raw := string(<-feed.C()); !strings.Contains(raw, `"mcp/proposal"`) {
		t.Errorf("the feed began with %s", raw)
	}
	if _, err := s.Decide(t.Context(), mewtest.Key(t, s.View(), "p1"), true, ""); err != nil {
		t.Fatal(err)
	}
	req := alice.Until("mcp/request")
	if req.GetStr("from") != OwnerName || string(mewtest.Get(req, "correlation_id").JSON()) != `["p1"]` ||
		string(mewtest.Get(req, "to").JSON()) != `["bob"]` || mewtest.Text(mewtest.Payload(req, "jsonrpc")) != "2.0" || mewtest.Text(mewtest.Payload(req, "params", "name")) != "x" {
		t.Errorf("the request is %s", req.JSON())
	}
	if _, err := s.Say(t.Context(), []byte(`{"kind":"reasoning/cancel","context":"r1","payload":{"reason":"enough"}}`)); err != nil {
		t.Error(err)
	}
	if st := s.View(); len(st.Proposals) != 0 || len(st.Reasoning) != 0 {
		t.Errorf("still there: %+v %+v", st.Proposals, st.Reasoning)
	}
	alice.Send(`{"id":"p2","kind":"mcp/proposal","payload":{}}`)
	alice.Fence()
	if _, err := s.Decide(t.Context(), mewtest.Key(t, s.View(), "p2"), false, "unsafe"); err != nil {
		t.Fatal(err)
	}
	if rej := alice.Until("mcp/reject"); mewtest.Text(mewtest.Payload(rej, "reason")) != "unsafe" {
		t.Errorf("got %s", rej.JSON())
	}
	if st := s.View(); len(st.Proposals) != 0 {
		t.Errorf("the owner is asked again: %+v", st.Proposals)
	}
	for _, bad := range []string{`{"kind":"system/presence"}`, `{"kind":"chat","from":"alice"}`, `{"kind":"space/kick","payload":{"participant_id":"nobody"}}`} {
		if _, err := s.Say(t.Context(), []byte(bad)); err == nil {
			t.Errorf("the owner said %s", bad)
		}
	}
	if _, err := s.Decide(t.Context(), "p9", true, ""); err == nil {
		t.Error("an unknown proposal was approved")
	}
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"alice-token","participantId":"owner"}`)
	p.Want("system/error")
}

// TestBoard: the owner approves exactly the proposal that the owner saw, although envelope ids may repeat. No
// participant withdraws or pushes out the proposal of another one, and the board is bounded.
func TestBoard(t *testing.T) {
	r := start(t, newLabConfig(t))
	s := r.G.Space("lab")
	alice, bob := s.members.byName["alice"], s.members.byName["bob"]
	propose := func(m *member, id, what string) {
		t.Helper()
		if got := say(s, m.name, `{"id":"`+id+`","kind":"mcp/proposal","payload":{"method":"`+what+`"}}`); got != "" {
			t.Fatalf("%s proposes %.20s: %s", m.name, what, got)
		}
	}
	propose(alice, "p1", "read")
	key := mewtest.Key(t, s.View(), "p1")
	propose(bob, "p1", "burn")
	propose(alice, "p1", "delete")
	say(s, "bob", `{"kind":"mcp/withdraw","correlation_id":["p1"],"payload":{}}`)
	watch := s.Watch()
	defer watch.Close()
	if st := s.View(); len(st.Proposals) != 2 {
		t.Errorf("%d proposals wait, want the two of alice", len(st.Proposals))
	}
	if _, err := s.Decide(t.Context(), key, true, ""); err != nil {
		t.Fatal(err)
	}
	if e := mewtest.Parse(t, string(<-watch.C())); mewtest.Text(mewtest.Payload(e, "method")) != "read" {
		t.Errorf("the owner approved read, and the envelope is %s", e.JSON())
	}
	propose(bob, "mine", "x")
	for n := range 2 * view.MaxOwnBoard {
		propose(alice, fmt.Sprintf("n%d", n), "y")
	}
	for n := range 8 {
		propose(alice, fmt.Sprintf("big%d", n), strings.Repeat("z", 900<<10))
	}
	bytes := 0
	st := s.View()
	for _, p := range st.Proposals {
		bytes += len(p.Payload)
	}
	mewtest.Key(t, st, "mine")
	if len(st.Proposals) > view.MaxOwnBoard+1 || bytes > view.MaxOwnBytes+100 {
		t.Errorf("%d proposals with %d bytes wait", len(st.Proposals), bytes)
	}
}

// TestOwnerStays: no participant of a hosted space takes the space or the name from its owner (MEW-24).
func TestOwnerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newQuietSpace(t, newLabConfig(t))
		for _, try := range []string{
			`{"kind":"space/kick","payload":{"participant_id":"owner"}}`,
			`{"kind":"capability/revoke","payload":{"recipient":"owner","capabilities":["*"]}}`,
		} {
			if got := say(s, "admin", try); got != "unauthorized" {
				t.Errorf("%s: %q, want unauthorized", try, got)
			}
		}
		got, fault := s.receive(s.members.byName["admin"], []byte(`{"kind":"space/invite","payload":{"participant_id":"owner","initial_capabilities":[]}}`), "http")
		if fault != nil || got.code != 409 {
			t.Errorf("inviting somebody as owner: %v, %v", got, fault)
		}
		say(s, "admin", `{"kind":"participant/pause","to":["owner"]}`)
		say(s, "admin", `{"kind":"participant/shutdown","to":["owner"]}`)
		if _, err := s.Say(t.Context(), []byte(`{"kind":"space/kick","payload":{"participant_id":"admin"}}`)); err != nil {
			t.Errorf("the owner was paused or shut down: %v", err)
		}
	})
}
