package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
)

type mewChatCmd struct {
	Text     string   `arg:"" help:"Text of the message."`
	To       []string `help:"Recipients (default: all participants)." placeholder:"ID"`
	Context  string   `help:"Id of the thread that the message belongs to." placeholder:"ID"`
	Markdown bool     `help:"Mark the text as Markdown."`
	mewTarget
}

func (c *mewChatCmd) Run(ctx context.Context, a *app) error {
	format := "plain"
	if c.Markdown {
		format = "markdown"
	}
	payload := wire.Obj(wire.TextField("text", c.Text), wire.TextField("format", format))
	return c.send(ctx, a, mewEnvelope{Kind: "chat", To: c.To, Context: c.Context, Payload: payload}, "sent")
}

type mewProposeCmd struct {
	Tool      string   `arg:"" help:"Name of the tool to call."`
	Arguments string   `arg:"" optional:"" default:"{}" help:"Arguments of the tool, as a JSON object."`
	To        []string `help:"Participants that have the tool." placeholder:"ID"`
	mewTarget
}

func (c *mewProposeCmd) Run(ctx context.Context, a *app) error {
	arguments, err := wire.ParseForeign([]byte(c.Arguments), envelope.MaxDepth, envelope.MaxValues)
	if err != nil || arguments.Kind() != wire.Object {
		return exit.Fail(exit.Usage, errors.New("arguments must be a JSON object"))
	}
	tool := wire.Obj(wire.TextField("name", c.Tool), wire.Field("arguments", arguments))
	payload := wire.Obj(wire.TextField("method", "tools/call"), wire.Field("params", tool))
	return c.send(ctx, a, mewEnvelope{Kind: "mcp/proposal", To: c.To, Payload: payload}, "proposed")
}

// decide sends the owner's decision about a proposal. It prints successText and the id of the resulting envelope.
func (t mewTarget) decide(ctx context.Context, a *app, proposal string, d mew.Decision, successText string) error {
	return t.withRunningSpace(ctx, a, func(o *daemon.Client, path string) error {
		raw, err := o.Call(ctx, http.MethodPost, path+"/proposals/"+url.PathEscape(proposal), nil, d)
		_, err = showAnswer(a, raw, err, func(got view.Said) { a.Print("%s (%s)", successText, terminal.Clean(got.ID)) })
		return err
	})
}

type mewApproveCmd struct {
	Proposal string `arg:"" help:"Key of a waiting proposal, from mew status, or its id, from mew tail."`
	mewTarget
}

func (c *mewApproveCmd) Run(ctx context.Context, a *app) error {
	return c.decide(ctx, a, c.Proposal, mew.Decision{Approve: new(true)}, "sent as a request")
}

type mewRejectCmd struct {
	Proposal string `arg:"" help:"Key of a waiting proposal, from mew status, or its id, from mew tail."`
	Reason   string `default:"disagree" help:"Reason code: disagree, unsafe, policy, busy, …"`
	mewTarget
}

func (c *mewRejectCmd) Run(ctx context.Context, a *app) error {
	return c.decide(ctx, a, c.Proposal, mew.Decision{Approve: new(false), Reason: c.Reason}, "rejected")
}

type mewCancelCmd struct {
	Sequence string `arg:"" help:"Id of the reasoning, from mew status."`
	Reason   string `help:"Reason."`
	mewTarget
}

func (c *mewCancelCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "reasoning/cancel", Context: c.Sequence, Payload: wire.Obj().WithOptional("reason", c.Reason)}, "asked to stop")
}

// mewParticipant has the arguments of a command that acts on a participant of a space.
type mewParticipant struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Reason."`
	mewTarget
}

type mewPauseCmd struct {
	For time.Duration `help:"Length of the pause, such as 5m (default: until mew resume)."`
	mewParticipant
}

type mewPause struct {
	Reason  string  `json:"reason,omitempty"`
	Seconds float64 `json:"timeout_seconds,omitempty"`
}

func (c *mewPauseCmd) Run(ctx context.Context, a *app) error {
	if c.For < 0 {
		return exit.Fail(exit.Usage, errors.New("--for must not be negative"))
	}
	e := mewEnvelope{Kind: "participant/pause", To: []string{c.Participant}, Payload: mewPause{c.Reason, c.For.Seconds()}}
	return c.send(ctx, a, e, "paused")
}

type mewResumeCmd struct{ mewParticipant }

func (c *mewResumeCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "participant/resume", To: []string{c.Participant}, Payload: wire.Obj().WithOptional("reason", c.Reason)}, "resumed")
}

type mewShutdownCmd struct{ mewParticipant }

func (c *mewShutdownCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "participant/shutdown", To: []string{c.Participant}, Payload: wire.Obj().WithOptional("reason", c.Reason)}, "asked to leave")
}

// parseCapabilities parses capabilities. Each is written as in the configuration: a kind, or a JSON pattern.
func parseCapabilities(list []string) (wire.Value, error) {
	var out []wire.Value
	for _, s := range list {
		capability := wire.Obj(wire.TextField("kind", s))
		if strings.HasPrefix(s, "{") {
			var err error
			if capability, err = wire.ParseForeign([]byte(s), wire.MaxDepth, wire.MaxValues); err != nil {
				return wire.Value{}, exit.Fail(exit.Usage, fmt.Errorf("%s is neither a kind nor JSON", s))
			}
		}
		out = append(out, capability)
	}
	return wire.Arr(out...), nil
}

type mewGrantCmd struct {
	mewParticipant
	Capability []string `arg:"" help:"A kind such as mcp/request, or a pattern as JSON."`
}

func (c *mewGrantCmd) Run(ctx context.Context, a *app) error {
	capabilities, err := parseCapabilities(c.Capability)
	if err != nil {
		return err
	}
	payload := wire.Obj(wire.TextField("recipient", c.Participant), wire.Field("capabilities", capabilities)).WithOptional("reason", c.Reason)
	return c.send(ctx, a, mewEnvelope{Kind: "capability/grant", To: []string{c.Participant}, Payload: payload}, "granted")
}

type mewRevokeCmd struct {
	Grant string `help:"Id of a grant to revoke, from mew status --json." placeholder:"ID"`
	mewParticipant
	Capability []string `arg:"" optional:"" help:"Capabilities to revoke, with all capabilities that they contain."`
}

func (c *mewRevokeCmd) Run(ctx context.Context, a *app) error {
	if (c.Grant == "") == (len(c.Capability) == 0) {
		return exit.Fail(exit.Usage, errors.New("name capabilities or --grant, not both"))
	}
	capabilities, err := parseCapabilities(c.Capability)
	if err != nil {
		return err
	}
	payload := wire.Obj(wire.TextField("recipient", c.Participant)).WithOptional("grant_id", c.Grant).WithOptional("reason", c.Reason)
	if c.Grant == "" {
		payload = payload.With("capabilities", capabilities)
	}
	return c.send(ctx, a, mewEnvelope{Kind: "capability/revoke", To: []string{c.Participant}, Payload: payload}, "revoked")
}

type mewInviteCmd struct {
	Name       string   `arg:"" help:"Name of the new participant."`
	Capability []string `arg:"" optional:"" help:"Initial capabilities: kinds, or patterns as JSON."`
	Reason     string   `help:"Reason."`
	mewTarget
}

func (c *mewInviteCmd) Run(ctx context.Context, a *app) error {
	capabilities, err := parseCapabilities(c.Capability)
	if err != nil {
		return err
	}
	payload := wire.Obj(wire.TextField("participant_id", c.Name), wire.Field("initial_capabilities", capabilities)).WithOptional("reason", c.Reason)
	return c.send(ctx, a, mewEnvelope{Kind: "space/invite", Payload: payload}, "invited "+terminal.Clean(c.Name))
}

type mewKickCmd struct{ mewParticipant }

func (c *mewKickCmd) Run(ctx context.Context, a *app) error {
	payload := wire.Obj(wire.TextField("participant_id", c.Participant)).WithOptional("reason", c.Reason)
	return c.send(ctx, a, mewEnvelope{Kind: "space/kick", Payload: payload}, "removed")
}
