package node_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestWhichErrorWins checks the order of the receive table (AM-24): each case violates at least two neighboring lines,
// and the earlier line answers. None of the cases stores anything.
func TestWhichErrorWins(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	mallory := mesh.Stranger("mallory")
	blocked := mesh.Stranger("blocked")

	bad := func(raw []byte) []byte { return bytes.Replace(raw, []byte(`"hello"`), []byte(`"hullo"`), 1) }
	old := func(d wire.Draft) wire.Draft { d.Time = time.Now().Add(-15*time.Minute - 2*time.Second); return d }
	foreign := func(d wire.Draft) wire.Draft { d.To = "am_somebody-else"; return d }

	cases := []struct {
		name      string
		configure func(*node.Config)
		prepare   func(t *testing.T, sarah *meshtest.Member)
		body      func(sarah *meshtest.Member) []byte
		want      *wire.Error
	}{
		{
			name: "too large beats bad JSON",
			body: func(*meshtest.Member) []byte { return []byte("{" + strings.Repeat(" ", wire.MaxMessage)) },
			want: wire.ErrTooLarge,
		}, {
			name: "bad JSON beats schema",
			body: func(*meshtest.Member) []byte { return []byte(`{"to":1,"to":2}`) },
			want: wire.ErrSyntax,
		}, {
			name: "schema beats recipient",
			body: func(sarah *meshtest.Member) []byte {
				return chris.SignTree(foreign(chris.Draft(sarah.ID(), wire.Deliver, hello)).Tree().With("timestamp", wire.Text("now")))
			},
			want: wire.ErrSchema,
		}, {
			name:    "recipient beats pause",
			prepare: func(t *testing.T, sarah *meshtest.Member) { pause(t, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(foreign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
			},
			want: wire.ErrRecipient,
		}, {
			name:      "pause beats block list",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{string(blocked.ID)} },
			prepare:   func(t *testing.T, sarah *meshtest.Member) { pause(t, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				return blocked.Sign(blocked.Draft(sarah.ID(), wire.Deliver, hello))
			},
			want: wire.ErrPaused,
		}, {
			name:      "block list beats an unknown card",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{"am_nobody"} },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.From = "am_nobody"
				return chris.Sign(d)
			},
			want: wire.ErrNotAllowed,
		}, {
			name:      "block list beats a forged signature",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{string(blocked.ID)} },
			body: func(sarah *meshtest.Member) []byte {
				return bad(blocked.Sign(blocked.Draft(sarah.ID(), wire.Deliver, hello)))
			},
			want: wire.ErrNotAllowed,
		}, {
			name: "unknown card beats the clock",
			body: func(sarah *meshtest.Member) []byte {
				d := old(chris.Draft(sarah.ID(), wire.Deliver, hello))
				d.From = "am_nobody"
				return chris.Sign(d)
			},
			want: wire.ErrUnknownSender,
		}, {
			name: "a forged signature beats the clock",
			body: func(sarah *meshtest.Member) []byte {
				return bad(mallory.Sign(old(mallory.Draft(sarah.ID(), wire.Deliver, hello))))
			},
			want: wire.ErrSignature,
		}, {
			name: "the clock beats a reused id",
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
			},
			body: func(sarah *meshtest.Member) []byte {
				d := old(chris.Draft(sarah.ID(), wire.Deliver, hello))
				d.ID = "msg_reused"
				return chris.Sign(d)
			},
			want: wire.ErrTimeWindow,
		}, {
			name:      "a reused id beats access",
			configure: mode(acl.Allowlist),
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "allow"}, nil)
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
				sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "forget"}, nil)
			},
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				return chris.Sign(d)
			},
			want: wire.ErrIDReused,
		}, {
			name: "access beats limits",
			configure: func(cfg *node.Config) {
				cfg.Policy = acl.Policy{Mode: acl.Allowlist, Allow: []string{string(chris.ID)}}
				cfg.Rates = acl.Rates{Total: 1}
			},
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
			},
			body: func(sarah *meshtest.Member) []byte {
				return mallory.Sign(mallory.Draft(sarah.ID(), wire.Deliver, hello))
			},
			want: wire.ErrNotAllowed,
		}, {
			name: "limits beat a closed conversation",
			configure: func(cfg *node.Config) {
				cfg.Policy.Allow = []string{string(chris.ID)}
				cfg.Rates = acl.Rates{Conversation: 2}
			},
			prepare: func(t *testing.T, sarah *meshtest.Member) { openAndClose(t, chris, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.Conversation = "conv_closed"
				return chris.Sign(d)
			},
			want: wire.ErrRateLimited,
		}, {
			name:    "a closed conversation beats an unsupported intent",
			prepare: func(t *testing.T, sarah *meshtest.Member) { openAndClose(t, chris, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), "com.example.unheard", `{}`)
				d.Conversation = "conv_closed"
				return chris.Sign(d)
			},
			want: wire.ErrConversationClosed,
		}, {
			name: "an unsupported intent beats a bad payload",
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), "mesh.unheard", `{"action":1}`))
			},
			want: wire.ErrIntent,
		}, {
			name:      "an unsupported intent of an unknown sender is refused, not held",
			configure: mode(acl.Approval),
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), "com.example.unheard", `{}`))
			},
			want: wire.ErrIntent,
		}, {
			name:      "a bad payload of an unknown sender is refused, not held",
			configure: mode(acl.Approval),
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, `{"action":"propose","event":{}}`))
			},
			want: wire.ErrPayload,
		}, {
			name: "a close does not open an unknown conversation",
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, closing))
			},
			want: wire.ErrConversationClosed,
		},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			sarah := mesh.Node(fmt.Sprintf("sarah-%d", i), func(cfg *node.Config) {
				cfg.Policy.Mode = acl.Open
				if c.configure != nil {
					c.configure(cfg)
				}
			})
			if c.prepare != nil {
				c.prepare(t, sarah)
			}
			before := state(t, sarah)
			a := meshtest.Post(t, sarah.URL, c.body(sarah))
			if a.Status != c.want.Status || a.Code() != c.want.Code || !bytes.Contains(a.Body, []byte(c.want.Message)) {
				t.Errorf("answer = %d %s, want %d %s %q", a.Status, a.Body, c.want.Status, c.want.Code, c.want.Message)
			}
			if after := state(t, sarah); after != before {
				t.Errorf("state = %s, want %s", after, before)
			}
		})
	}
}

func pause(t *testing.T, m *meshtest.Member) {
	t.Helper()
	if err := m.SetPause(t.Context(), true, "test"); err != nil {
		t.Fatal(err)
	}
}
