package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestLinkFilter: a chat to everybody reaches the node only if the owner wants that, and a filter holds back the kinds,
// senders and words that it does not name (docs/bridges/mew.md).
func TestLinkFilter(t *testing.T) {
	chat := func(to, text string) string {
		return `{"kind":"chat"` + to + `,"payload":{"text":"` + text + `"}}`
	}
	const us = `,"to":["node"]`
	for _, tt := range []struct {
		name      string
		broadcast bool
		filter    bridge.LinkFilter
		from      string
		say       string
		comes     bool
	}{
		{"to us", false, bridge.LinkFilter{}, "cat", chat(us, "x"), true},
		{"to everybody", false, bridge.LinkFilter{}, "cat", chat("", "x"), false},
		{"to everybody, wanted", true, bridge.LinkFilter{}, "cat", chat("", "x"), true},
		{"to nobody in particular, wanted", true, bridge.LinkFilter{}, "cat", chat(`,"to":[]`, "x"), true},
		{"to somebody else, wanted", true, bridge.LinkFilter{}, "cat", chat(`,"to":["dog"]`, "x"), false},
		{"a named sender", false, bridge.LinkFilter{From: []string{"cat"}}, "cat", chat(us, "x"), true},
		{"another sender", false, bridge.LinkFilter{From: []string{"cat"}}, "dog", chat(us, "x"), false},
		{"a word of it", true, bridge.LinkFilter{Keywords: []string{"fire", "Smoke"}}, "cat", chat("", "where there is SMOKE"), true},
		{"no word of it", true, bridge.LinkFilter{Keywords: []string{"fire", "Smoke"}}, "cat", chat("", "all quiet"), false},
		{"a named kind", false, bridge.LinkFilter{Types: []string{"chat"}}, "cat", chat(us, "x"), true},
		{"another kind", false, bridge.LinkFilter{Types: []string{"mcp/proposal"}}, "cat", chat(us, "x"), false},
		{"a proposal of another sender", false, bridge.LinkFilter{From: []string{"cat"}}, "dog", `{"kind":"mcp/proposal"` + us + `,"payload":{"method":"x"}}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, bridge.LinkPolicy{Access: "open", Broadcast: tt.broadcast, Filter: tt.filter})
			l.Inject(t.Context(), tt.from, []byte(strings.Replace(tt.say, "{", `{"id":"x1",`, 1)))
			items, _, err := l.home.Inbox(t.Context(), "", "", 10)
			if err != nil || (len(items) == 1) != tt.comes {
				t.Errorf("%d items, %v; want that it comes: %t", len(items), err, tt.comes)
			}
		})
	}
}

// TestLinkNoTransit: a participant cannot write to the peer of another link through this node, and nothing that an agent
// writes to the node reaches the space (MEW-L6, THREATS 20).
func TestLinkNoTransit(t *testing.T) {
	den := newClubConfig(t, allKinds, "owl")
	den.ID = "den"
	den.Participants[0].Tokens = []string{"den-node-token"}
	den.Participants[1].Tokens = []string{"owl-token"}
	r := start(t, newClubConfig(t, allKinds, "cat", "dog"), den)
	there := bridge.Link{Name: "den", Kind: Kind, URL: r.URL(""), Space: "den", Policy: bridge.LinkPolicy{Access: "open"}}
	l := newLabOn(t, r, meshtest.New(t), linkOf(r, bridge.LinkPolicy{Access: "open", Tools: bridge.Tools()}), there)
	cat, owl := l.peers["cat"], r.Join("owl-token")
	pseudonym := bridge.Address{Kind: Kind, Link: "den", Peer: "owl"}.Pseudonym()
	for _, to := range []string{"mew:den/owl", "mew:other/owl", "mess:other/owl", string(pseudonym)} {
		if sent := l.use("cat", bridge.ToolSend, `{"to":"`+to+`","text":"over the hills"}`); !sent.IsNull() {
			t.Errorf("to %s: %s", to, sent.JSON())
		}
	}
	if extra := owl.Fence(); len(extra) > 0 {
		t.Errorf("the other space saw %s", extra)
	}
	conv := l.use("cat", bridge.ToolSend, `{"to":"`+string(l.far.ID())+`","text":"a word"}`).GetStr("conversation_id")
	asked := l.inbox(l.far, owner.ItemNew)
	if _, err := l.far.Send(t.Context(), node.Outgoing{
		To: l.home.ID(), Conv: asked.Conversation, Intent: wire.Deliver, Via: "owner", Payload: mewtest.Parse(t, `{"action":"deliver","message":{"body":"secret"}}`),
	}, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	cat.Send(`{"id":"c1","kind":"chat","to":["node"],"context":"` + conv + `","payload":{"text":"to the agent"}}`)
	l.await("in the inbox", func() bool {
		items, _, err := l.home.Inbox(t.Context(), owner.ItemNew, "", 10)
		return err == nil && len(items) == 2 && string(items[1].Conversation) != conv && items[1].Address != ""
	})
	if got, _, err := l.far.Inbox(t.Context(), owner.ItemNew, "", 10); err != nil || len(got) != 1 {
		t.Errorf("the agent got %d messages, %v", len(got), err)
	}
	for _, s := range cat.Fence() {
		if strings.Contains(s, "secret") {
			t.Errorf("the participant saw %s", s)
		}
	}
}

// TestLinkTLS: a link over TLS works with a gateway whose certificate is valid, and with no other gateway (MEW-L1).
func TestLinkTLS(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat"))
	secure := httptest.NewTLSServer(r.G)
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	link := linkOf(r, bridge.LinkPolicy{})
	link.URL = "wss" + strings.TrimPrefix(secure.URL, "https")
	through := func(cfg client.HTTPConfig) websocket.Dialer {
		cfg.Local = true
		h := client.NewHTTP(cfg)
		t.Cleanup(h.Close)
		return func(ctx context.Context, u *url.URL) (net.Conn, error) { return h.Connect(ctx, client.Owner, u) }
	}
	t.Run("good", func(t *testing.T) {
		k := newTestLink(t, r, Config{Links: []bridge.Link{link}, Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records(),
			Dial: through(client.HTTPConfig{RootCAs: roots})}, "cat")
		k.peers["cat"].Control("participant/request-status", `{}`, "participant/status")
		k.Disconnect()
		k.Reconnect()
	})
	b, err := New(Config{Links: []bridge.Link{link}, Tokens: map[string]client.Credential{"home": "node-token"}, Records: r.Store.Records(), Steps: r.Store.Steps(), Dial: through(client.HTTPConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Test(t.Context(), "home")
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("a gateway with an invalid certificate: %v", err)
	}
}

// TestLinkExpires: if nobody decides about a proposal or a request in time, its sender gets a rejection or an error,
// also if the node is not in the space at that time (MEW-L3).
func TestLinkExpires(t *testing.T) {
	for _, tt := range []struct {
		name, envelope, kind, want string
		away                       bool
	}{
		{"proposal", fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"), envelope.KindReject, `{"reason":"timeout"}`, false},
		{"proposal, away", fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"), envelope.KindReject, `{"reason":"timeout"}`, true},
		{"request, away", fmt.Sprintf(callTo, "p1", "discover"), envelope.KindResponse, `{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"the owner of this node did not decide in time"}}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startOn(t, t.TempDir(), gateway.Config{Spaces: []gateway.SpaceConfig{newClubConfig(t, allKinds, "cat", "dog")}}, mewtest.NewPipes())
				l := newLabOn(t, r, meshtest.InMemory(t), linkOf(r, bridge.LinkPolicy{Access: "approval", Tools: []string{"discover"}}))
				answers := make(chan wire.Value, 10)
				var reading sync.WaitGroup
				for _, p := range l.peers { // both read all the time, to answer pings
					reading.Go(func() {
						for {
							_, data, err := p.Conn.Read()
							if err != nil {
								return
							}
							if e, fault := envelope.Parse(data); fault == nil && e.Kind == tt.kind && p == l.peers["cat"] {
								answers <- mewtest.Parse(t, string(data))
							}
						}
					})
				}
				l.home.Start()
				l.peers["cat"].Send(tt.envelope)
				l.ask()
				if tt.away {
					l.Disconnect()
				}
				time.Sleep(30 * time.Minute)
				synctest.Wait()
				if tt.away {
					if len(answers) != 0 {
						t.Error("the node answered although it was not in the space")
					}
					l.Reconnect()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(answers) != 1 {
					t.Fatalf("the sender got %d answers, want 1", len(answers))
				}
				answer := <-answers
				if payload, _ := answer.Get("payload"); mewtest.About(answer) != "p1" || string(payload.JSON()) != tt.want {
					t.Errorf("the sender got %s, want the payload %s", answer.JSON(), tt.want)
				}
				for _, p := range l.peers {
					p.Conn.Abort()
				}
				reading.Wait()
			})
		})
	}
}
