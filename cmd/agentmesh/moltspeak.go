package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/registry"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type moltspeakCmd struct {
	Status  moltspeakStatusCmd  `cmd:"" default:"withargs" aliases:"show" help:"Show the node's name, keys and endpoint as a MoltSpeak agent."`
	Query   moltspeakQueryCmd   `cmd:"" aliases:"send" help:"Ask a MoltSpeak agent for information."`
	Task    moltspeakTaskCmd    `cmd:"" help:"Delegate a task to a MoltSpeak agent."`
	Tool    moltspeakToolCmd    `cmd:"" help:"Call a tool of a MoltSpeak agent."`
	Search  moltspeakSearchCmd  `cmd:"" help:"Find MoltSpeak agents in the registry of a link."`
	Peers   moltspeakPeersCmd   `cmd:"" aliases:"list" help:"List MoltSpeak agents and their pinned keys."`
	Grant   moltspeakGrantCmd   `cmd:"" help:"Accept personal data (messages of the class pii) from an agent."`
	Unpin   moltspeakUnpinCmd   `cmd:"" help:"Forget the pinned key of an agent, what you granted to it, and your consents for it. The next key that the agent shows is pinned."`
	Consent moltspeakConsentCmd `cmd:"" help:"List and revoke your consents to send personal data."`
}

type moltspeakStatusCmd struct{}

func (c *moltspeakStatusCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, moltspeak.ShowStatus.Call(), func(s moltspeak.Status) {
		rows := [][]string{
			{"agent", s.Agent}, {"key", s.Key}, {"encryption key", s.EncKey}, {"endpoint", orDash(s.URL)},
		}
		for _, r := range s.Registries {
			state := "does not list the node: " + r.Error
			if r.Error == "" {
				state = "lists the node, " + terminal.FormatTime(r.Registered)
			}
			rows = append(rows, []string{"registry", r.URL + " " + state})
		}
		a.Table(rows)
	})
}

// moltspeakTarget names the agent that a command writes to.
type moltspeakTarget struct {
	Link string `arg:"" help:"Name of the link."`
	Peer string `arg:"" help:"The agent, as agent@org."`
}

func (t moltspeakTarget) send(ctx context.Context, a *app, c sendFlags, intent wire.Intent, payload wire.Value) error {
	to := bridge.Address{Kind: moltspeak.Kind, Link: t.Link, Peer: t.Peer}
	if _, ok := message.ParseName(t.Peer); !ok || to.Validate() != nil {
		return exit.Fail(exit.Usage, errors.New("a MoltSpeak agent is named by link and agent@org"))
	}
	return a.send(ctx, c, func(waitSeconds int) owner.Call[owner.Sent] {
		return owner.SendMessage.With(owner.NewMessage{To: to.String(), Intent: intent, Payload: payload, WaitSeconds: waitSeconds})
	})
}

// parseObjectArg parses an argument that is a JSON object. An empty text means an empty object.
func parseObjectArg(text string) (wire.Value, error) {
	if text == "" {
		return wire.Obj(), nil
	}
	v, err := wire.ParseObject([]byte(text))
	if err != nil {
		return v, exit.Fail(exit.Input, fmt.Errorf("%s is not a JSON object", terminal.Clean(text)))
	}
	return v, nil
}

// moltspeakSendFlags are those of [sendFlags] that apply to messages to MoltSpeak agents.
type moltspeakSendFlags struct {
	Wait    bool `help:"Wait for the answer and print it."`
	Approve bool `help:"If the message waits for you, print it and approve it at once. Only for people: an agent must not use this flag."`
}

func (f moltspeakSendFlags) sendFlags() sendFlags {
	return sendFlags{Wait: f.Wait, Approve: f.Approve}
}

type moltspeakQueryCmd struct {
	moltspeakTarget
	Domain string `arg:"" help:"Domain of the query, such as weather."`
	Params string `arg:"" optional:"" help:"Parameters, as a JSON object."`
	Intent string `placeholder:"NAME" help:"Intent of the query, such as forecast."`
	moltspeakSendFlags
}

func (c *moltspeakQueryCmd) Run(ctx context.Context, a *app) error {
	params, err := parseObjectArg(c.Params)
	if err != nil {
		return err
	}
	p := wire.Obj(wire.TextField("action", "query"), wire.TextField("domain", c.Domain)).WithOptional("intent", c.Intent)
	if params.Len() > 0 {
		p = p.With("params", params)
	}
	return c.send(ctx, a, c.sendFlags(), moltspeak.IntentQuery, p)
}

type moltspeakTaskCmd struct {
	moltspeakTarget
	Type        string    `arg:"" help:"Kind of task, such as research."`
	Params      string    `arg:"" optional:"" help:"Parameters, as a JSON object."`
	Description string    `placeholder:"TEXT" help:"Description of the task."`
	Deadline    time.Time `placeholder:"TIME" help:"Deadline, such as 2026-12-01T12:00:00Z."`
	moltspeakSendFlags
}

func (c *moltspeakTaskCmd) Run(ctx context.Context, a *app) error {
	params, err := parseObjectArg(c.Params)
	if err != nil {
		return err
	}
	p := wire.Obj(wire.TextField("action", "create"), wire.TextField("type", c.Type)).WithOptional("description", c.Description)
	if params.Len() > 0 {
		p = p.With("params", params)
	}
	if !c.Deadline.IsZero() {
		p = p.With("deadline", wire.Int(c.Deadline.UnixMilli()))
	}
	return c.send(ctx, a, c.sendFlags(), moltspeak.IntentTask, p)
}

type moltspeakToolCmd struct {
	moltspeakTarget
	Tool  string `arg:"" help:"Name of the tool."`
	Input string `arg:"" optional:"" help:"Input of the tool, as a JSON object."`
	moltspeakSendFlags
}

func (c *moltspeakToolCmd) Run(ctx context.Context, a *app) error {
	input, err := parseObjectArg(c.Input)
	if err != nil {
		return err
	}
	return c.send(ctx, a, c.sendFlags(), moltspeak.IntentTool, wire.Obj(
		wire.TextField("action", "invoke"), wire.TextField("tool", c.Tool), wire.Field("input", input),
	))
}

type moltspeakSearchCmd struct {
	Link       string `arg:"" help:"Name of a link with a registry_url."`
	Text       string `arg:"" optional:"" help:"Part of a name, an organization, a description or a capability."`
	Capability string `placeholder:"NAME" help:"List only agents with this capability."`
	Org        string `placeholder:"NAME" help:"List only agents of this organization."`
}

func (c *moltspeakSearchCmd) Run(ctx context.Context, a *app) error {
	if c.Text == "" && c.Capability == "" && c.Org == "" {
		return exit.Fail(exit.Usage, errors.New("give a text, --capability or --org"))
	}
	query := url.Values{"link": {c.Link}, "q": {c.Text}, "capability": {c.Capability}, "org": {c.Org}}
	heads := []string{"AGENT", "ENDPOINT", "CAPABILITIES", "DESCRIPTION"}
	return callAndShowList(ctx, a, moltspeak.SearchAgents.Call().WithQuery(query), "the registry lists no matching agents", heads, func(e registry.Entry) []string {
		return []string{e.ID, orDash(e.Endpoint), orDash(strings.Join(e.Capabilities, ",")), orDash(e.Description)}
	})
}

type moltspeakPeersCmd struct{}

func (c *moltspeakPeersCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"AGENT", "FIRST SEEN", "KEY", "LISTED BY", "MAY SEND PII", "REFUSED KEY"}
	return callAndShowList(ctx, a, moltspeak.ListPeers.Call(), "no key of a MoltSpeak agent is pinned yet", heads, func(p moltspeak.PeerView) []string {
		maySend := "-"
		if p.GrantedPII {
			maySend = "yes"
		}
		return []string{p.Name, terminal.FormatTime(p.First), p.Key, orDash(p.Vouched), maySend, orDash(p.Refused)}
	})
}

type moltspeakGrantCmd struct {
	Peer   string `arg:"" help:"The agent, as agent@org."`
	Revoke bool   `help:"Refuse personal data from the agent again."`
}

func (c *moltspeakGrantCmd) Run(ctx context.Context, a *app) error {
	change := moltspeak.GrantPII
	if c.Revoke {
		change = moltspeak.RevokePII
	}
	return callAndShow(ctx, a, change.Call(c.Peer), func(moltspeak.Done) { a.Print("%s: done", terminal.Clean(c.Peer)) })
}

type moltspeakUnpinCmd struct {
	Peer string `arg:"" help:"The agent, as agent@org."`
}

func (c *moltspeakUnpinCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, moltspeak.UnpinPeer.Call(c.Peer), func(moltspeak.Done) { a.Print("%s: forgotten", terminal.Clean(c.Peer)) })
}

type moltspeakConsentCmd struct {
	List   moltspeakConsentListCmd   `cmd:"" default:"withargs" help:"List your consents, including ended ones."`
	Revoke moltspeakConsentRevokeCmd `cmd:"" help:"Revoke a consent, with immediate effect."`
}

type moltspeakConsentListCmd struct{}

func (c *moltspeakConsentListCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"CONSENT", "AGENT", "SCOPE", "LIMITS", "PURPOSE", "UNTIL", "STATE"}
	return callAndShowList(ctx, a, moltspeak.ListConsents.Call(), "you have given no consent", heads, func(g moltspeak.Grant) []string {
		state := "live"
		switch {
		case g.Revoked != 0:
			state = "revoked"
		case g.Used != "":
			state = "used"
		case time.Now().Unix() >= g.Expires:
			state = "expired"
		}
		return []string{g.ID, g.Peer, strings.Join(g.Scope, ","), orDash(describeConstraints(g.Constraints)), g.Purpose, terminal.FormatTime(time.Unix(g.Expires, 0)), state}
	})
}

func describeConstraints(c message.Constraints) string {
	var words []string
	if c.OneTime {
		words = append(words, "one message")
	}
	if c.NoStorage {
		words = append(words, "no storage")
	}
	if c.NoForward {
		words = append(words, "not passed on")
	}
	return strings.Join(words, ", ")
}

type moltspeakConsentRevokeCmd struct {
	Consent string `arg:"" help:"Id of the consent."`
}

func (c *moltspeakConsentRevokeCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, moltspeak.RevokeConsent.Call(c.Consent), func(moltspeak.Done) { a.Print("%s: revoked", terminal.Clean(c.Consent)) })
}
