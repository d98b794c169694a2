package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// withOwnDirectory configures a node in the process of a directory, as serve does, that also uses other directories.
func withOwnDirectory(own *meshtest.Mesh, others ...*meshtest.Mesh) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Directories = []*client.Directory{client.NewDirectory(own.URL, nil, client.InProcess(own.Public))}
		for _, m := range others {
			cfg.Directories = append(cfg.Directories, m.Directory())
		}
		cfg.CredentialOf = own.CredentialOf
	}
}

// behindProxy serves the node in the public profile behind a proxy that forwards client addresses. The returned
// function posts a message from an address.
func behindProxy(t *testing.T, m *meshtest.Member) func(from string, raw []byte) (status int) {
	t.Helper()
	edge := httpapi.New(httpapi.Config{
		PublicURL: "https://sarah.example", RequestsPerMinute: 100_000, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	m.Mount(edge.Echo(), edge.Addresses())
	srv := httptest.NewServer(edge.Handler())
	t.Cleanup(srv.Close)
	return func(from string, raw []byte) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+node.Path, bytes.NewReader(raw))
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Forwarded-For", from)
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
}

// TestNewcomerIsServedInAFlood (THREATS 31): one attacker with 60 cards on 6 tokens, and with made-up senders, floods
// a node with messages, holds and look-ups from one address. Still a newcomer from another address is held within 5
// seconds, whether our own directory or another one has its card, and a known peer is served.
func TestNewcomerIsServedInAFlood(t *testing.T) {
	const evil = "203.0.113.66"
	own, other := meshtest.New(t), meshtest.New(t)
	friend, newcomer, stranger := own.Stranger("friend"), own.Stranger("newcomer"), other.Stranger("stranger")
	sarah := own.Node("sarah", func(cfg *node.Config) {
		withOwnDirectory(own, other)(cfg)
		cfg.Policy = acl.Policy{Mode: acl.Approval, Allow: []string{string(friend.ID)}}
	})
	post := behindProxy(t, sarah)
	attackers := make([]*meshtest.Stranger, 60)
	for i := range attackers {
		attackers[i] = own.Tenant(fmt.Sprintf("evil-%d", i), fmt.Sprintf("token-%d", i%6))
	}
	var mu sync.Mutex
	answers := map[int]int{}
	spent := make(chan struct{}) // closed when the attacker has used up its share
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var flood sync.WaitGroup
	for worker := range 6 {
		flood.Go(func() {
			for i := worker; ctx.Err() == nil; i += 6 {
				from := attackers[i%60]
				d := from.Draft(sarah.ID(), wire.Deliver, hello)
				if i%2 == 0 {
					d.From = wire.AgentID(fmt.Sprintf("am_made_up_%d", i))
				}
				status := post(evil, from.Sign(d))
				mu.Lock()
				if answers[status]++; status == http.StatusTooManyRequests && answers[status] == 300 {
					close(spent)
				}
				mu.Unlock()
			}
		})
	}
	<-spent
	for _, s := range []struct {
		who  *meshtest.Stranger
		from string
		want int
	}{{newcomer, "198.51.100.7", http.StatusAccepted}, {stranger, "192.0.2.9", http.StatusAccepted}, {friend, evil, http.StatusOK}} {
		began := time.Now()
		if status := post(s.from, s.who.Sign(s.who.Draft(sarah.ID(), wire.Deliver, hello))); status != s.want {
			t.Errorf("%s is answered %d, want %d", s.who.Name, status, s.want)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s waited %v", s.who.Name, took)
		}
	}
	stop()
	flood.Wait()
	t.Logf("the flood was answered %v", answers)
	if held := answers[http.StatusAccepted]; held > 41 { // one token may have been refilled meanwhile
		t.Errorf("%d messages of the attacker were held, want four fifths of what strangers have", held)
	}
	if n := len(pendingAsks(t, sarah)); n > 43 {
		t.Errorf("%d questions wait, want at most 43", n)
	}
}

// TestSlowFloodLeavesRoom: an attacker that uses every token as soon as it is refilled, for hours, does not lock
// others out.
func TestSlowFloodLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", open)
		evil := rate.AddrSources(netip.MustParseAddr("203.0.113.66"))
		attackers := make([]*meshtest.Stranger, 60)
		for i := range attackers {
			attackers[i] = mesh.Stranger(fmt.Sprintf("evil-%d", i))
		}
		attack := func(i int) error {
			from := attackers[i%60]
			_, err := sarah.ReceiveFrom(t.Context(), from.Sign(from.Draft(sarah.ID(), wire.Deliver, hello)), evil)
			return err
		}
		served := 0
		for i := range 60 {
			if attack(i) == nil {
				served++
			}
		}
		if served != 40 {
			t.Errorf("the attacker got %d messages in at once, want 40", served)
		}
		for i := range 400 { // eight hours
			time.Sleep(72 * time.Second)
			_ = attack(i)
			if i%50 != 0 {
				continue
			}
			newcomer := mesh.Stranger(fmt.Sprintf("newcomer-%d", i))
			from := rate.AddrSources(netip.AddrFrom4([4]byte{198, 51, byte(i / 50), 7}))
			if _, err := sarah.ReceiveFrom(t.Context(), newcomer.Sign(newcomer.Draft(sarah.ID(), wire.Deliver, hello)), from); err != nil {
				t.Errorf("newcomer after %d messages: %v", i, err)
			}
		}
	})
}

// TestManyBehindOneRoof: honest agents of one hosting provider, or of one mailbox relay, do not count as one attacker.
func TestManyBehindOneRoof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		for name, from := range map[string]func(i int) []rate.Source{
			"provider": func(i int) []rate.Source { return rate.AddrSources(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})) },
			"relay":    func(int) []rate.Source { return nil },
		} {
			sarah := mesh.Node("sarah-"+name, mode(acl.Approval))
			for i := range 24 {
				agent := mesh.Stranger(fmt.Sprintf("%s-%d", name, i))
				out, err := sarah.ReceiveFrom(t.Context(), agent.Sign(agent.Draft(sarah.ID(), wire.Deliver, hello)), from(i))
				if err != nil || !out.Held {
					t.Errorf("agent %d of one %s: %+v, %v, want it held", i, name, out, err)
				}
			}
		}
	})
}

// TestFullHoldList (AM-33): 200 cards from one address fill the list of holds. A newcomer from another address takes
// the newest of their places, and its loser may write again when there is room. A message that is refused because no
// place is free uses up nothing (AM-41).
func TestFullHoldList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			cfg.Policy.Mode = acl.Approval
			cfg.Rates = acl.Rates{NewConversations: 10}
		})
		sarah.Start()
		evil := rate.AddrSources(netip.MustParseAddr("203.0.113.66"))
		send := func(from *meshtest.Stranger, d wire.Draft, sources []rate.Source) (int, error) {
			out, err := sarah.ReceiveFrom(t.Context(), from.Sign(d), sources)
			return out.Status, err
		}
		var last wire.Draft
		var loser *meshtest.Stranger
		var first wire.Draft
		var firstOne *meshtest.Stranger
		for i := range 200 {
			loser = mesh.Stranger(fmt.Sprintf("evil-%d", i))
			last = loser.Draft(sarah.ID(), wire.Schedule, propose)
			if i == 0 {
				first, firstOne = last, loser
			}
			if status, err := send(loser, last, evil); status != http.StatusAccepted {
				t.Fatalf("stranger %d: %d, %v, want it held", i, status, err)
			}
			time.Sleep(time.Millisecond)
		}
		late := mesh.Stranger("late")
		for range 30 { // more conversations than it may open in an hour
			if _, err := send(late, late.Draft(sarah.ID(), wire.Deliver, hello), evil); !errors.Is(err, wire.ErrHoldsFull) {
				t.Fatalf("one more card of the attacker: %v, want %v", err, wire.ErrHoldsFull)
			}
		}
		newcomer := mesh.Stranger("newcomer")
		elsewhere := rate.AddrSources(netip.MustParseAddr("198.51.100.7"))
		if status, err := send(newcomer, newcomer.Draft(sarah.ID(), wire.Deliver, hello), elsewhere); status != http.StatusAccepted {
			t.Fatalf("newcomer: %d, %v, want it held", status, err)
		}
		if n := len(pendingAsks(t, sarah)); n != 200 {
			t.Errorf("%d questions wait, want 200", n)
		}
		time.Sleep(time.Minute)
		var item struct {
			Items []struct {
				State     string `json:"state"`
				MessageID string `json:"message_id"`
			}
		}
		sarah.Call("GET", "/inbox?state=expired", nil, &item)
		if len(item.Items) != 1 || item.Items[0].MessageID != string(last.ID) {
			t.Errorf("expired items: %+v, want the newest message of the attacker", item.Items)
		}
		var conv struct {
			Held []time.Time `json:"held"`
		}
		sarah.Call("GET", "/conversations/"+string(last.Conversation), nil, &conv)
		if len(conv.Held) != 0 {
			t.Errorf("the conversation of the displaced message is held until %v", conv.Held)
		}

		if status, err := send(loser, last, evil); status != http.StatusAccepted {
			t.Errorf("exact repeat of the displaced message: %d, %v, want the stored answer", status, err)
		}
		anew := loser.Draft(sarah.ID(), wire.Schedule, propose)
		if _, err := send(loser, anew, evil); !errors.Is(err, wire.ErrHoldsFull) {
			t.Errorf("a new message of the displaced sender: %v, want %v", err, wire.ErrHoldsFull)
		}
		if status, err := send(firstOne, in(first.Conversation, firstOne.Draft(sarah.ID(), wire.Schedule, `{"action":"cancel"}`)), evil); status != http.StatusOK {
			t.Errorf("cancel of a held message while the list is full: %d, %v", status, err)
		}
		if status, err := send(loser, anew, evil); status != http.StatusAccepted {
			t.Errorf("a new message of the displaced sender when there is room: %d, %v, want it held", status, err)
		}
		if status, err := send(firstOne, in(first.Conversation, firstOne.Draft(sarah.ID(), wire.Schedule, closing)), evil); status != http.StatusOK {
			t.Errorf("close while the list is full: %d, %v", status, err)
		}
		decide(t, sarah, pendingAsks(t, sarah)[0], acl.Reject)
		if status, err := send(late, late.Draft(sarah.ID(), wire.Deliver, hello), evil); status != http.StatusAccepted {
			t.Errorf("a sender that was refused 30 times, when there is room: %d, %v, want it held", status, err)
		}
	})
}
