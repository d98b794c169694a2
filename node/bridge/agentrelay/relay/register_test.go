package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestRegister checks ids and tokens (AR-1 to AR-5).
func TestRegister(t *testing.T) {
	s := newTestRelay(t, Config{})
	for _, tt := range []struct {
		name, body string
		status     int
		want       string // error; else the id, "*" for one of the relay's
	}{
		{"named", `{"agent_id":"alice-1"}`, 200, "alice-1"},
		{"without", `{}`, 200, "*"},
		{"no body", ``, 200, "*"},
		{"null", `{"agent_id":null}`, 200, "*"},
		{"empty", `{"agent_id":""}`, 200, "*"},
		{"more members", `{"agent_id":"bob","x":[1]}`, 200, "bob"},
		{"taken", `{"agent_id":"alice-1"}`, 409, "agent_id_taken"},
		{"two characters", `{"agent_id":"ab"}`, 400, "invalid_agent_id"},
		{"three", `{"agent_id":"abc"}`, 200, "abc"},
		{"hyphen first", `{"agent_id":"-abc"}`, 400, "invalid_agent_id"},
		{"hyphen last", `{"agent_id":"abc-"}`, 400, "invalid_agent_id"},
		{"capitals", `{"agent_id":"ABC"}`, 400, "invalid_agent_id"},
		{"underscore", `{"agent_id":"a_b"}`, 400, "invalid_agent_id"},
		{"64", `{"agent_id":"` + strings.Repeat("a", 64) + `"}`, 200, strings.Repeat("a", 64)},
		{"65", `{"agent_id":"` + strings.Repeat("a", 65) + `"}`, 400, "invalid_agent_id"},
		{"the relay's own", `{"agent_id":"relay"}`, 400, "invalid_agent_id"},
		{"number", `{"agent_id":7}`, 400, "invalid_agent_id"},
		{"not JSON", `{"agent_id"`, 400, "invalid_json"},
		{"not an object", `null`, 400, "invalid_json"},
		{"twice", `{"agent_id":"carol","agent_id":"dave"}`, 400, "invalid_json"},
		{"too large", `{"x":"` + strings.Repeat("x", maxRegister) + `"}`, 413, "invalid_json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body := s.ask("POST", "/register", tt.body)
			var got struct {
				AgentID string `json:"agent_id"`
				Token   string `json:"token"`
				Error   string `json:"error"`
				Message string `json:"message"`
			}
			if err := json.Unmarshal(body, &got); err != nil || status != tt.status {
				t.Fatalf("POST /register %s: %d %s (%v), want %d", tt.body, status, body, err, tt.status)
			}
			switch {
			case status != 200:
				if got.Error != tt.want || got.Message == "" || got.Token != "" {
					t.Errorf("answer %s, want error %s and a message", body, tt.want)
				}
			case !strings.HasPrefix(got.Token, "tok_") || len(got.Token) != 4+32:
				t.Errorf("token %q, want tok_ and 128 bits", got.Token)
			case tt.want == "*" && (!strings.HasPrefix(got.AgentID, "agent-") || len(got.AgentID) != len("agent-xxxxxxxx") || !frame.ValidAgentID(got.AgentID)):
				t.Errorf("id %q, want one of the relay's", got.AgentID)
			case tt.want != "*" && got.AgentID != tt.want:
				t.Errorf("id %q, want %q", got.AgentID, tt.want)
			}
		})
	}
}

// TestRestart: ids and tokens survive a restart, and no token is in the database (AR-5).
func TestRestart(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{})
	token := s.register("alice")
	s.stop()
	again := newTestRelayOn(t, st, Config{})
	again.connectAs("alice", token).quiet()
	if status, body := again.ask("POST", "/register", `{"agent_id":"alice"}`); status != http.StatusConflict {
		t.Errorf("the id after a restart: %d %s, want it taken", status, body)
	}
	rec, err := st.Records().Get(t.Context(), nsAgents, "alice", time.Now())
	if err != nil || bytes.Contains(rec.Body, []byte(token)) || !bytes.Contains(rec.Body, []byte(credential.HashOf(token).String())) {
		t.Errorf("the database holds the token itself, or not its hash: %s, %v", rec.Body, err)
	}
}

// TestRegistrationsBounded: the relay accepts no more agents than it may have, and refused registrations do not count
// for the rate of an address.
func TestRegistrationsBounded(t *testing.T) {
	s := newTestRelay(t, Config{MaxAgents: 20, RegistrationsPerHour: 30})
	for n := range 40 { // a refused registration does not count
		status, body := s.ask("POST", "/register", fmt.Sprintf(`{"agent_id":"agent-%d"}`, n))
		want := http.StatusOK
		if n >= 20 {
			want = http.StatusServiceUnavailable
		}
		if status != want {
			t.Errorf("registration %d: %d %s, want %d", n, status, body, want)
		}
	}
}

// TestTenThousandRegistrations: a relay holds 10,000 registrations, finds them again after a restart, and takes no
// more.
func TestTenThousandRegistrations(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a relay")
	}
	st := openStore(t)
	addAgents(t, newIdleRelay(t, Config{Records: st.Records()}, 0), credential.MaxAccounts, "agent-%05d")
	s := newTestRelayOn(t, st, Config{})
	if n := s.agents.Count(); n != credential.MaxAccounts {
		t.Fatalf("%d agents after the start, want %d", n, credential.MaxAccounts)
	}
	if status, body := s.ask("POST", "/register", `{"agent_id":"one-more"}`); status != http.StatusServiceUnavailable {
		t.Errorf("one more: %d %s, want it refused", status, body)
	}
	s.connectAs("agent-09999", "agent-09999").quiet()
}

// TestRegistrationModes checks who may register in each mode (AR-36).
func TestRegistrationModes(t *testing.T) {
	closed := newTestRelay(t, Config{Registration: credential.Closed})
	if status, body := closed.ask("POST", "/register", `{}`); status != http.StatusForbidden || !strings.Contains(string(body), "registration_closed") {
		t.Errorf("closed: %d %s", status, body)
	}
	s := newTestRelay(t, Config{Registration: credential.Invite})
	if status, _ := s.ask("POST", "/register", `{}`); status != http.StatusForbidden {
		t.Errorf("without a code: %d, want 403", status)
	}
	var made Invite
	s.callOwner("POST", "/owner/agentrelay/invites", "", &made)
	if status, body := s.ask("POST", "/register", `{"agent_id":"alice"}`, wire.HeaderInvite, made.Code); status != http.StatusOK {
		t.Errorf("with a code: %d %s, want it registered", status, body)
	}
	if status, _ := s.ask("POST", "/register", `{"agent_id":"bob"}`, wire.HeaderInvite, made.Code); status != http.StatusForbidden {
		t.Errorf("with a used code: %d, want 403", status)
	}
}

// TestInviteWithoutStore: a fault of the store is neither the invited client's nor counted as a failure of its address.
func TestInviteWithoutStore(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{Registration: credential.Invite})
	var made Invite
	s.callOwner("POST", "/owner/agentrelay/invites", "", &made)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 * credential.MaxFailures {
		if status, body := s.ask("POST", "/register", `{"agent_id":"alice"}`, wire.HeaderInvite, made.Code); status != http.StatusServiceUnavailable {
			t.Fatalf("status %d, want 503: %s", status, body)
		}
	}
}

// TestOwnerAgents: the owner can issue, replace and revoke tokens.
func TestOwnerAgents(t *testing.T) {
	s := newTestRelay(t, Config{Registration: credential.Closed})
	var made frame.Credentials
	if status := s.callOwner("POST", "/owner/agentrelay/agents", `{"agent_id":"alice","trusted":true}`, &made); status != 200 {
		t.Fatalf("make a token: %d", status)
	}
	a := s.connectAs("alice", made.Token)
	var list owner.List[AgentView]
	s.callOwner("GET", "/owner/agentrelay/agents", "", &list)
	if len(list.Items) != 1 || list.Items[0].ID != "alice" || !list.Items[0].Connected || !list.Items[0].Trusted {
		t.Errorf("agents: %+v", list.Items)
	}
	var added frame.Credentials
	s.callOwner("POST", "/owner/agentrelay/agents/alice/token", "", &added)
	if got := a.closed(); got != frame.CloseBadToken {
		t.Errorf("the connection of the old token ended with %d, want %d", got, frame.CloseBadToken)
	}
	if _, err := s.dial(made.Token); err == nil {
		t.Error("the old token is still good")
	}
	b := s.connectAs("alice", added.Token)
	if status := s.callOwner("DELETE", "/owner/agentrelay/agents/alice", "", nil); status != http.StatusNoContent {
		t.Errorf("remove: %d", status)
	}
	b.closed()
	if _, err := s.dial(added.Token); err == nil {
		t.Error("the token of a removed agent is good")
	}
	if status := s.callOwner("POST", "/owner/agentrelay/agents", `{"agent_id":"alice"}`, nil); status != http.StatusConflict {
		t.Errorf("the id of a removed agent: %d, want it taken", status)
	}
}

// TestRevokedOnTheWay: a token that is replaced or revoked while an agent connects with it does not admit the agent.
func TestRevokedOnTheWay(t *testing.T) {
	s := newTestRelay(t, Config{})
	for name, revoke := range map[string]func(id string) error{
		"renewed": func(id string) error { _, err := s.agents.Rotate(t.Context(), id); return err },
		"removed": func(id string) error { return s.agents.Remove(t.Context(), id) },
	} {
		found := s.agents.Find(s.register(name))
		if found == nil {
			t.Fatalf("%s: the token is unknown", name)
		}
		if err := revoke(name); err != nil {
			t.Fatal(err)
		}
		if got := s.conns.enter(&session{id: found.ID, key: found.Key}, s.agents, nil); got == nil || got.Code != frame.CloseBadToken {
			t.Errorf("%s: enter = %v, want a close with %d", name, got, frame.CloseBadToken)
		}
	}
}

// hookedRecords calls a function while changes are written.
type hookedRecords struct {
	store.Records
	during func() error
}

func (w hookedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := w.during(); err != nil {
		return err
	}
	return w.Records.Apply(ctx, changes, now)
}

// TestJoin: the node of the process keeps its id and gets a new token at each call. If somebody else has the id, the
// node gets another one, and never the other agent's.
func TestJoin(t *testing.T) {
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{})
	s.register("hub")
	first, err := s.Join(t.Context(), "hub")
	if err != nil || first.AgentID == "hub" || first.Token == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	s = newTestRelayOn(t, st, Config{})
	second, err := s.Join(t.Context(), "another-name")
	if err != nil || second.AgentID != first.AgentID || second.Token == first.Token {
		t.Errorf("%+v, %v", second, err)
	}
	if s.agents.Find(first.Token) != nil {
		t.Error("the first token is still valid")
	}
	if a := s.agents.Find(second.Token); a == nil || a.ID != first.AgentID || !a.Trusted {
		t.Errorf("%+v", a)
	}
}
