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

// Commands that say something in a space, as its owner or as this node.

// mewReason is why somebody is told to do something.
type mewReason struct {
	Reason string `json:"reason,omitempty"`
}

type mewChatCmd struct {
	Text     string   `arg:"" help:"What to say."`
	To       []string `help:"Participants; without it everybody." placeholder:"ID"`
	Context  string   `help:"Thread that it belongs to." placeholder:"ID"`
	Markdown bool     `help:"The text is Markdown."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

// mewText is the payload of a chat.
type mewText struct {
	Text   string `json:"text"`
	Format string `json:"format"`
}

func (c *mewChatCmd) Run(ctx context.Context, a *app) error {
	format := "plain"
	if c.Markdown {
		format = "markdown"
	}
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "chat", To: c.To, Context: c.Context, Payload: mewText{c.Text, format}}, "said")
}

type mewProposeCmd struct {
	Tool      string   `arg:"" help:"Name of the tool that somebody may call."`
	Arguments string   `arg:"" optional:"" default:"{}" help:"Its arguments, as JSON."`
	To        []string `help:"Participants that have the tool." placeholder:"ID"`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

// mewToolCall is the payload of a proposal.
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
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "mcp/proposal", To: c.To, Payload: payload}, "proposed")
}

// mewDecision is the owner's word on a proposal.
type mewDecision struct {
	Approve bool   `json:"approve"`
	Reason  string `json:"reason,omitempty"`
}

func (w mewWhere) settle(ctx context.Context, a *app, asJSON bool, proposal string, d mewDecision, done string) error {
	return w.at(ctx, a, true, func(o *daemon.Client, path string) error {
		raw, err := o.Call(ctx, http.MethodPost, path+"/proposals/"+url.PathEscape(proposal), nil, d)
		_, err = present(a, asJSON, raw, err, func(got mewSaid) { a.Print("%s (%s)", done, terminal.Clean(got.ID)) })
		return err
	})
}

type mewApproveCmd struct {
	Proposal string `arg:"" help:"Key of a proposal that waits; mew status lists them."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewApproveCmd) Run(ctx context.Context, a *app) error {
	return c.settle(ctx, a, c.JSON, c.Proposal, mewDecision{Approve: true}, "sent as a request")
}

type mewRejectCmd struct {
	Proposal string `arg:"" help:"Key of a proposal that waits; mew status lists them."`
	Reason   string `default:"disagree" help:"Reason code: disagree, unsafe, policy, busy, …"`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewRejectCmd) Run(ctx context.Context, a *app) error {
	return c.settle(ctx, a, c.JSON, c.Proposal, mewDecision{Reason: c.Reason}, "rejected")
}

type mewCancelCmd struct {
	Sequence string `arg:"" help:"Id of the reasoning; mew status lists those that go on."`
	Reason   string `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewCancelCmd) Run(ctx context.Context, a *app) error {
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "reasoning/cancel", Context: c.Sequence, Payload: mewReason{c.Reason}}, "told to stop")
}

type mewPauseCmd struct {
	Participant string        `arg:"" help:"Id of the participant."`
	For         time.Duration `help:"How long; without it until somebody resumes it." placeholder:"5m"`
	Reason      string        `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

// mewPause is the payload of participant/pause.
type mewPause struct {
	Reason  string  `json:"reason,omitempty"`
	Seconds float64 `json:"timeout_seconds,omitempty"`
}

func (c *mewPauseCmd) Run(ctx context.Context, a *app) error {
	if c.For < 0 {
		return exit.Fail(exit.Usage, errors.New("--for must not be negative"))
	}
	e := mewEnvelope{Kind: "participant/pause", To: []string{c.Participant}, Payload: mewPause{c.Reason, c.For.Seconds()}}
	return c.say(ctx, a, c.JSON, e, "paused")
}

type mewResumeCmd struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewResumeCmd) Run(ctx context.Context, a *app) error {
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "participant/resume", To: []string{c.Participant}, Payload: mewReason{c.Reason}}, "resumed")
}

type mewShutdownCmd struct {
	Participant string `arg:"" help:"Id of the participant."`
	Reason      string `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewShutdownCmd) Run(ctx context.Context, a *app) error {
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "participant/shutdown", To: []string{c.Participant}, Payload: mewReason{c.Reason}}, "told to leave")
}

// mewRights reads capabilities as the configuration writes them: a kind, or a pattern as JSON.
func mewRights(list []string) ([]json.RawMessage, error) {
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

// mewGrant is the payload of capability/grant and capability/revoke.
type mewGrant struct {
	Recipient    string            `json:"recipient"`
	Grant        string            `json:"grant_id,omitempty"`
	Capabilities []json.RawMessage `json:"capabilities,omitempty"`
	Reason       string            `json:"reason,omitempty"`
}

type mewGrantCmd struct {
	Participant string   `arg:"" help:"Who gets it."`
	Capability  []string `arg:"" help:"A kind such as mcp/request, or a pattern as JSON."`
	Reason      string   `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewGrantCmd) Run(ctx context.Context, a *app) error {
	rights, err := mewRights(c.Capability)
	if err != nil {
		return err
	}
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "capability/grant", To: []string{c.Participant},
		Payload: mewGrant{Recipient: c.Participant, Capabilities: rights, Reason: c.Reason}}, "granted")
}

type mewRevokeCmd struct {
	Participant string   `arg:"" help:"Who loses it."`
	Capability  []string `arg:"" optional:"" help:"What is contained in one of these goes."`
	Grant       string   `help:"Id of the grant that ends; mew status --json shows them." placeholder:"ID"`
	Reason      string   `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

func (c *mewRevokeCmd) Run(ctx context.Context, a *app) error {
	if (c.Grant == "") == (len(c.Capability) == 0) {
		return exit.Fail(exit.Usage, errors.New("name capabilities or --grant, and not both"))
	}
	rights, err := mewRights(c.Capability)
	if err != nil {
		return err
	}
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "capability/revoke", To: []string{c.Participant},
		Payload: mewGrant{Recipient: c.Participant, Grant: c.Grant, Capabilities: rights, Reason: c.Reason}}, "revoked")
}

type mewInviteCmd struct {
	Name       string   `arg:"" help:"Name of the new participant."`
	Capability []string `arg:"" optional:"" help:"What it may do from the start: kinds, or patterns as JSON."`
	Reason     string   `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

// mewInvitation is the payload of space/invite.
type mewInvitation struct {
	Name    string            `json:"participant_id"`
	Initial []json.RawMessage `json:"initial_capabilities"`
	Reason  string            `json:"reason,omitempty"`
}

func (c *mewInviteCmd) Run(ctx context.Context, a *app) error {
	rights, err := mewRights(c.Capability)
	if err != nil {
		return err
	}
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "space/invite", Payload: mewInvitation{c.Name, rights, c.Reason}}, "invited "+terminal.Clean(c.Name))
}

type mewKickCmd struct {
	Participant string `arg:"" help:"Who is thrown out. Its token works no more."`
	Reason      string `help:"Why."`
	mewWhere
	JSON bool `help:"Print the result as JSON."`
}

// mewKicking is the payload of space/kick.
type mewKicking struct {
	Participant string `json:"participant_id"`
	Reason      string `json:"reason,omitempty"`
}

func (c *mewKickCmd) Run(ctx context.Context, a *app) error {
	return c.say(ctx, a, c.JSON, mewEnvelope{Kind: "space/kick", Payload: mewKicking{c.Participant, c.Reason}}, "thrown out")
}
