package owner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const someID = "am_abcdefghijklmnopqrstuvwxyz"

func TestShowName(t *testing.T) {
	for name, tc := range map[string]struct {
		names       owner.PeerNames
		address, id string
		want        string
	}{
		"alias wins":          {owner.PeerNames{PeerAlias: "chris", PeerName: "Christine"}, "", someID, "chris"},
		"claimed is quoted":   {owner.PeerNames{PeerName: "chris"}, "", someID, `"chris"`},
		"no forged quotes":    {owner.PeerNames{PeerName: `chris" or "ann`}, "", someID, `"chris' or 'ann"`},
		"inert":               {owner.PeerNames{PeerName: "a\u202e\nb\x1b[31m"}, "", someID, `"a b[31m"`},
		"blank is no name":    {owner.PeerNames{PeerName: " \u200b\n"}, "", someID, "am_abcdefgh…"},
		"long is cut":         {owner.PeerNames{PeerName: strings.Repeat("x", 500)}, "", someID, `"` + strings.Repeat("x", 40) + `…"`},
		"short id":            {owner.PeerNames{}, "", someID, "am_abcdefgh…"},
		"id that is short":    {owner.PeerNames{}, "", "am_chris", "am_chris"},
		"foreign":             {owner.PeerNames{}, "agentrelay:free/owl", someID, "owl (agentrelay:free)"},
		"foreign with a name": {owner.PeerNames{PeerName: "Owl"}, "agentrelay:free/owl", someID, `"Owl" (agentrelay:free)`},
		"foreign id as name":  {owner.PeerNames{PeerName: "owl"}, "agentrelay:free/owl", someID, "owl (agentrelay:free)"},
		"foreign principal":   {owner.PeerNames{}, "mew:lab", "mew:lab", "mew:lab"},
		"nothing":             {owner.PeerNames{}, "", "", ""},
	} {
		if got := owner.ShowName(tc.names, tc.address, tc.id).String(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestShowSubject(t *testing.T) {
	for _, tc := range []struct {
		kind          acl.AuditKind
		subject, want string
	}{
		{acl.AuditRule, someID, "am_abcdefgh…"},
		{acl.AuditRule, "mew:lab/alice", "alice (mew:lab)"},
		{acl.AuditOperator, someID, someID},
		{acl.AuditOperator, "network:192.0.2.0/24", "network:192.0.2.0/24"},
	} {
		if got := owner.ShowSubject(acl.AuditEntry{Kind: tc.kind, Subject: tc.subject}, owner.PeerNames{}).String(); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.kind, tc.subject, got, tc.want)
		}
	}
}

// names counts look-ups.
type names struct {
	known map[string]owner.PeerNames
	asked int
}

func (n *names) NamesOf(_ context.Context, id string) (owner.PeerNames, error) {
	if n.asked++; id == "am_broken" {
		return owner.PeerNames{}, errors.New("the disk is gone")
	}
	return n.known[id], nil
}

// TestAuditNames: the look-up of each peer happens once, and a failure is reported.
func TestAuditNames(t *testing.T) {
	n := &names{known: map[string]owner.PeerNames{"am_a": {PeerAlias: "ann"}}}
	entries := []acl.AuditEntry{{Subject: "am_a"}, {Subject: "am_b"}, {}, {Subject: "am_a"}}
	found, err := owner.AuditNames(t.Context(), n, entries)
	if err != nil || len(found) != 1 || found["am_a"].PeerAlias != "ann" || n.asked != 2 {
		t.Errorf("%v after %d look-ups, %v", found, n.asked, err)
	}
	if _, err := owner.AuditNames(t.Context(), n, []acl.AuditEntry{{Subject: "am_broken"}}); err == nil {
		t.Error("the failure is lost")
	}
}

// TestNameParties: an answer of a bridge has names for the ids of its parties, and the whole id of requester and
// executor. Messages stay as they were sent.
func TestNameParties(t *testing.T) {
	const id = "am_abcdefghijklmnopqrstuvwxyz"
	v, err := wire.Parse([]byte(`{"thread":{"requestor_id":"` + id + `","executor_id":"bob","tags":["` + id + `",1],` +
		`"messages":[{"from":"` + id + `","mess":[{"from":"` + id + `"}]},{"from":"exchange"}],` +
		`"peer_names":{"` + id + `":{"peer_name":"Chris"}}},"from":"` + id + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"thread":{"requestor_id":"\"Chris\" (` + id + `)","executor_id":"bob","tags":["` + id + `",1],` +
		`"messages":[{"from":"\"Chris\"","mess":[{"from":"` + id + `"}]},{"from":"exchange"}]},"from":"` + id + `"}`
	if got := string(owner.NameParties(v).JSON()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// decider is a node that has decided a question about an agent.
type decider struct {
	owner.Node
	names
}

func (d *decider) NamesOf(ctx context.Context, id string) (owner.PeerNames, error) {
	return d.names.NamesOf(ctx, id)
}

func (*decider) Decide(_ context.Context, subject string, _ owner.Decision, _ time.Duration) (owner.Decided, error) {
	return owner.Decided{Ask: acl.Ask{Subject: subject}}, nil
}

// TestDecisionHasNames: the answer to a decision names the agent. A failed look-up does not make it a failure.
func TestDecisionHasNames(t *testing.T) {
	n := owner.WithNames(&decider{names: names{known: map[string]owner.PeerNames{someID: {PeerName: "Chris"}}}})
	for id, want := range map[string]string{someID: "Chris", "am_broken": ""} {
		if got, err := n.Decide(t.Context(), id, owner.Decision{}, 0); err != nil || got.PeerName != want {
			t.Errorf("%s is called %q, %v, want %q", id, got.PeerName, err, want)
		}
	}
}

// TestNoticeDetail: the page shows of a notice what the name of the peer beside it does not say.
func TestNoticeDetail(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"am_abcdefgh…":                  "",
		`"chris" (am_abcdefgh…)`:        "",
		"am_abcdefgh…: ask for its key": "ask for its key",
		`"c" (am_abcdefgh…): wait`:      "wait",
		"Mon 2 Jan with " + someID:      "Mon 2 Jan with " + someID,
		"Mon 2 Jan with chris":          "Mon 2 Jan with chris",
	} {
		n := owner.Notice{Notice: notify.Notice{Peer: someID, Text: text}}
		if got := n.Detail(); got != want {
			t.Errorf("Detail of %q = %q, want %q", text, got, want)
		}
	}
}
