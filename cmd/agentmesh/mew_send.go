package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// mewReason is the payload of an envelope that carries a reason and nothing else.
type mewReason struct {
	Reason string `json:"reason,omitempty"`
}

type mewChatCmd struct {
	Text     string   `arg:"" help:"Text of the message."`
	To       []string `help:"Recipients (default: all participants)." placeholder:"ID"`
	Context  string   `help:"Id of the thread that the message belongs to." placeholder:"ID"`
	Markdown bool     `help:"Mark the text as Markdown."`
	mewTarget
}

type mewText struct {
	Text   string `json:"text"`
	Format string `json:"format"`
}

func (c *mewChatCmd) Run(ctx context.Context, a *app) error {
	format := "plain"
	if c.Markdown {
		format = "markdown"
	}
	return c.send(ctx, a, mewEnvelope{Kind: "chat", To: c.To, Context: c.Context, Payload: mewText{c.Text, format}}, "sent")
}

type mewProposeCmd struct {
	Tool      string   `arg:"" help:"Name of the tool to call."`
	Arguments string   `arg:"" optional:"" default:"{}" help:"Arguments of the tool, as a JSON object."`
	To        []string `help:"Participants that have the tool." placeholder:"ID"`
	mewTarget
}

type mewToolCall struct {
	Method string        `json:"method"`
	Params mewToolParams `json:"params"`
}

type mewToolParams struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func (c *mewProposeCmd) Run(ctx context.Context, a *app) error {
	if !json.Valid([]byte(c.Arguments)) || !strings.HasPrefix(strings.TrimSpace(c.Arguments), "{") {
		return exit.Fail(exit.Usage, errors.New("arguments must be a JSON object"))
	}
	payload := mewToolCall{"tools/call", mewToolParams{c.Tool, json.RawMessage(c.Arguments)}}
	return c.send(ctx, a, mewEnvelope{Kind: "mcp/proposal", To: c.To, Payload: payload}, "proposed")
}

type mewDecision struct {
	Approve bool   `json:"approve"`
	Reason  string `json:"reason,omitempty"`
}

// decide sends the owner's decision about a proposal, and prints done with the id of the resulting envelope.
func (t mewTarget) decide(ctx context.Context, a *app, proposal string, d mewDecision, done string) error {
	return t.withSpace(ctx, a, true, func(o *daemon.Client, path string) error {
		raw, err := o.Call(ctx, http.MethodPost, path+"/proposals/"+url.PathEscape(proposal), nil, d)
		_, err = showAnswer(a, raw, err, func(got mewSendResult) { a.Print("%s (%s)", done, terminal.Clean(got.ID)) })
		return err
	})
}

type mewApproveCmd struct {
	Proposal string `arg:"" help:"Key of a waiting proposal, from mew status."`
	mewTarget
}

func (c *mewApproveCmd) Run(ctx context.Context, a *app) error {
	return c.decide(ctx, a, c.Proposal, mewDecision{Approve: true}, "sent as a request")
}

type mewRejectCmd struct {
	Proposal string `arg:"" help:"Key of a waiting proposal, from mew status."`
	Reason   string `default:"disagree" help:"Reason code: disagree, unsafe, policy, busy, …"`
	mewTarget
}

func (c *mewRejectCmd) Run(ctx context.Context, a *app) error {
	return c.decide(ctx, a, c.Proposal, mewDecision{Reason: c.Reason}, "rejected")
}

type mewCancelCmd struct {
	Sequence string `arg:"" help:"Id of the reasoning, from mew status."`
	Reason   string `help:"Reason."`
	mewTarget
}

func (c *mewCancelCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "reasoning/cancel", Context: c.Sequence, Payload: mewReason{c.Reason}}, "asked to stop")
}

type mewPauseCmd struct {
	Participant string        `arg:"" help:"Id of the participant."`
	For         time.Duration `help:"Length of the pause, such as 5m (default: until mew resume)."`
	Reason      string        `help:"Reason."`
	mewTarget
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

type mewResumeCmd struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Reason."`
	mewTarget
}

func (c *mewResumeCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "participant/resume", To: []string{c.Participant}, Payload: mewReason{c.Reason}}, "resumed")
}

type mewShutdownCmd struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Reason."`
	mewTarget
}

func (c *mewShutdownCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "participant/shutdown", To: []string{c.Participant}, Payload: mewReason{c.Reason}}, "asked to leave")
}

// encodeCapabilities returns capabilities as JSON. Each is written as in the configuration: a kind, or a JSON pattern.
func encodeCapabilities(list []string) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	for _, s := range list {
		if !strings.HasPrefix(s, "{") {
			raw, err := json.Marshal(struct {
				Kind string `json:"kind"`
			}{s})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s, err)
			}
			out = append(out, raw)
			continue
		}
		if !json.Valid([]byte(s)) {
			return nil, exit.Fail(exit.Usage, fmt.Errorf("%s is neither a kind nor JSON", s))
		}
		out = append(out, json.RawMessage(s))
	}
	return out, nil
}

type mewGrant struct {
	Recipient    string            `json:"recipient"`
	Grant        string            `json:"grant_id,omitempty"`
	Capabilities []json.RawMessage `json:"capabilities,omitempty"`
	Reason       string            `json:"reason,omitempty"`
}

type mewGrantCmd struct {
	Participant string   `arg:"" help:"Id of the participant."`
	Capability  []string `arg:"" help:"A kind such as mcp/request, or a pattern as JSON."`
	Reason      string   `help:"Reason."`
	mewTarget
}

func (c *mewGrantCmd) Run(ctx context.Context, a *app) error {
	capabilities, err := encodeCapabilities(c.Capability)
	if err != nil {
		return err
	}
	return c.send(ctx, a, mewEnvelope{Kind: "capability/grant", To: []string{c.Participant},
		Payload: mewGrant{Recipient: c.Participant, Capabilities: capabilities, Reason: c.Reason}}, "granted")
}

type mewRevokeCmd struct {
	Participant string   `arg:"" help:"Id of the participant."`
	Capability  []string `arg:"" optional:"" help:"Capabilities to revoke, with all capabilities that they contain."`
	Grant       string   `help:"Id of a grant to revoke, from mew status --json." placeholder:"ID"`
	Reason      string   `help:"Reason."`
	mewTarget
}

func (c *mewRevokeCmd) Run(ctx context.Context, a *app) error {
	if (c.Grant == "") == (len(c.Capability) == 0) {
		return exit.Fail(exit.Usage, errors.New("name capabilities or --grant, not both"))
	}
	capabilities, err := encodeCapabilities(c.Capability)
	if err != nil {
		return err
	}
	return c.send(ctx, a, mewEnvelope{Kind: "capability/revoke", To: []string{c.Participant},
		Payload: mewGrant{Recipient: c.Participant, Grant: c.Grant, Capabilities: capabilities, Reason: c.Reason}}, "revoked")
}

type mewInviteCmd struct {
	Name       string   `arg:"" help:"Name of the new participant."`
	Capability []string `arg:"" optional:"" help:"Initial capabilities: kinds, or patterns as JSON."`
	Reason     string   `help:"Reason."`
	mewTarget
}

type mewInvitation struct {
	Name    string            `json:"participant_id"`
	Initial []json.RawMessage `json:"initial_capabilities"`
	Reason  string            `json:"reason,omitempty"`
}

func (c *mewInviteCmd) Run(ctx context.Context, a *app) error {
	capabilities, err := encodeCapabilities(c.Capability)
	if err != nil {
		return err
	}
	return c.send(ctx, a, mewEnvelope{Kind: "space/invite", Payload: mewInvitation{c.Name, capabilities, c.Reason}}, "invited "+terminal.Clean(c.Name))
}

type mewKickCmd struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Reason."`
	mewTarget
}

type mewKick struct {
	Participant string `json:"participant_id"`
	Reason      string `json:"reason,omitempty"`
}

func (c *mewKickCmd) Run(ctx context.Context, a *app) error {
	return c.send(ctx, a, mewEnvelope{Kind: "space/kick", Payload: mewKick{c.Participant, c.Reason}}, "removed")
}
