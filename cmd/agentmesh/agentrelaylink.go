package main

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/link"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type agentRelayFeedCmd struct {
	Link  string `arg:"" help:"Name of the link."`
	Limit int    `default:"50" help:"Maximum number of items, 1 to 1000."`
}

func (c *agentRelayFeedCmd) Run(ctx context.Context, a *app) error {
	feed := link.ShowFeed.Call(c.Link).WithQuery(owner.Params("limit", strconv.Itoa(c.Limit)))
	const emptyText = "no broadcasts since agentmesh serve started; broadcasts are lost while the link is down"
	return callAndShowList(ctx, a, feed, emptyText, []string{"AT", "FROM", "TYPE", "TEXT"}, func(i link.FeedItem) []string {
		text := cmp.Or(i.Note, string(i.Payload))
		return []string{terminal.FormatTime(i.At), i.From, orDash(terminal.Truncate(i.Type, 20)), terminal.Truncate(text, 100)}
	})
}

type agentRelayPeersCmd struct{ linkArg }

func (c *agentRelayPeersCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"ADDRESS", "TUNNEL TO", "SKILLS (UNPROVEN)"}
	return callAndShowList(ctx, a, link.ListPeers.Call(c.Link), "no peers: nobody has written since agentmesh serve started", heads, func(p link.PeerView) []string {
		return []string{p.Address, orDash(string(p.Agent)), orDash(terminal.Truncate(strings.Join(p.Skills, ", "), 60))}
	})
}

type agentRelayPeerCmd struct {
	Link  string `arg:"" help:"Name of the link."`
	Peer  string `arg:"" help:"Id of the agent on the relay."`
	Agent string `required:"" placeholder:"AGENT" help:"Agent id (am_…) of the agent at the other end of the tunnel. Empty: end the tunnel."`
}

func (c *agentRelayPeerCmd) Run(ctx context.Context, a *app) error {
	change := link.ChangePeer.With(link.PeerChange{Agent: wire.AgentID(c.Agent)}, c.Link, c.Peer)
	return callAndShow(ctx, a, change, func(p link.Peer) {
		a.Note("%s: tunnel to %s", terminal.Clean(p.Peer), orDash(string(p.Agent)))
	})
}

type agentRelaySendCmd struct {
	Link    string `arg:"" help:"Name of the link."`
	Payload string `arg:"" help:"A text, or JSON with --raw."`
	Type    string `default:"thought" help:"Type of the message: thought, question, announcement, discovery…"`
	Ref     string `placeholder:"ID" help:"Id of the message that this one refers to."`
	Raw     bool   `help:"Read the payload as JSON."`
}

// Run broadcasts a message. Messages to one agent belong to a conversation and go through agentmesh send.
func (c *agentRelaySendCmd) Run(ctx context.Context, a *app) error {
	payload := wire.Text(c.Payload)
	if c.Raw {
		var err error
		if payload, err = wire.Parse([]byte(c.Payload)); err != nil {
			return exit.Fail(exit.Input, err)
		}
	}
	send := link.SendBroadcast.With(link.Broadcast{Type: c.Type, Ref: c.Ref, Payload: payload}, c.Link)
	return callAndShow(ctx, a, send, func(owner.None) { a.Note("sent to the relay; broadcasts are not acknowledged") })
}

type agentRelayHistoryCmd struct {
	Link  string `arg:"" help:"Name of the link."`
	Limit int    `default:"50" help:"Maximum number of messages, 1 to 100."`
}

// relayHistory is the answer of a relay to the command history.
type relayHistory struct {
	Messages []relayMessage `json:"messages"`
}

type relayMessage struct {
	From    string          `json:"from"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

func (c *agentRelayHistoryCmd) Run(ctx context.Context, a *app) error {
	ask := link.Command{Type: "command", Payload: wire.Obj(wire.TextField("command", "history"), wire.Field("limit", wire.Int(int64(c.Limit))))}
	call := owner.Call[relayHistory](link.SendCommand.With(ask, c.Link))
	return callAndShow(ctx, a, call, func(r relayHistory) {
		showList(a, owner.Page(r.Messages, ""), "the relay returned no messages", []string{"FROM", "TYPE", "TEXT"}, func(m relayMessage) []string {
			return []string{terminal.Truncate(m.From, 64), orDash(terminal.Truncate(m.Type, 20)), terminal.Truncate(string(m.Payload), 100)}
		})
	})
}
