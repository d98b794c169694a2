package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// mewTarget names a space that runs here, or a link to a space elsewhere.
type mewTarget struct {
	Space string `help:"Id of a space that runs here." placeholder:"ID"`
	Link  string `help:"Name of a link to a space elsewhere." placeholder:"NAME"`
}

type mewSpaces struct {
	Hosted []mew.SpaceSummary `json:"hosted"`
	Linked []mew.LinkSummary  `json:"linked"`
}

func listMewSpaces(ctx context.Context, o *daemon.Client) (out mewSpaces, err error) {
	if out.Hosted, err = listOrEmpty(ctx, o, mew.ListSpaces); err != nil {
		return out, err
	}
	out.Linked, err = listOrEmpty(ctx, o, mew.ListLinks)
	return out, err
}

// listOrEmpty reads a list from the owner API. The list is empty if the process does not serve it.
func listOrEmpty[T any](ctx context.Context, o *daemon.Client, e owner.Endpoint[owner.None, owner.List[T]]) ([]T, error) {
	page, err := daemon.Fetch(ctx, o, e.Call())
	if errors.Is(err, owner.ErrNotServed) {
		err = nil
	}
	return append([]T{}, page.Items...), err
}

// path returns the path of the space in the owner API. If the user named none, there must be exactly one space or link.
func (t mewTarget) path(ctx context.Context, o *daemon.Client) (string, error) {
	switch {
	case t.Space != "" && t.Link != "":
		return "", exit.Fail(exit.Usage, errors.New("name --space or --link, not both"))
	case t.Space != "":
		return "mew/spaces/" + url.PathEscape(t.Space), nil
	case t.Link != "":
		return "mew/links/" + url.PathEscape(t.Link), nil
	}
	all, err := listMewSpaces(ctx, o)
	if err != nil {
		return "", err
	}
	switch {
	case len(all.Hosted)+len(all.Linked) == 0:
		return "", exit.FailHint(exit.Input, errors.New("there is no MEW space here"), "add one to mew.spaces or links in the configuration: docs/bridges/mew.md")
	case len(all.Hosted)+len(all.Linked) > 1:
		return "", exit.FailHint(exit.Input, errors.New("there is more than one space: name --space or --link"), "list the spaces with: agentmesh mew spaces")
	case len(all.Hosted) == 1:
		return "mew/spaces/" + url.PathEscape(all.Hosted[0].ID), nil
	}
	return "mew/links/" + url.PathEscape(all.Linked[0].Link), nil
}

// withRunningSpace runs f with the path of the space in the owner API. It returns an error if serve is not running.
func (t mewTarget) withRunningSpace(ctx context.Context, a *app, f func(o *daemon.Client, path string) error) error {
	return a.withClient(ctx, func(o *daemon.Client) error {
		if err := requireServe(o, "only serve runs spaces"); err != nil {
			return err
		}
		path, err := t.path(ctx, o)
		if err != nil {
			return err
		}
		return f(o, path)
	})
}

// mewEnvelope is an envelope from a command. The space adds the other members.
type mewEnvelope struct {
	ID      string   `json:"id,omitempty"`
	Kind    string   `json:"kind"`
	To      []string `json:"to,omitempty"`
	Context string   `json:"context,omitempty"`
	Payload any      `json:"payload"`
}

// send sends an envelope as the owner of a space here, or as this node in a space elsewhere. After
// success it prints successText.
func (t mewTarget) send(ctx context.Context, a *app, e mewEnvelope, successText string) error {
	return t.withRunningSpace(ctx, a, func(o *daemon.Client, path string) error {
		raw, err := o.Call(ctx, http.MethodPost, path+"/messages", nil, e)
		_, err = showAnswer(a, raw, err, func(got mew.Sent) {
			a.Print("%s (%s)", successText, terminal.Clean(got.ID))
			if absent := describeAbsent(got, e); absent != "" {
				a.Note("%s; a space does not keep envelopes for absent participants", terminal.Clean(absent))
			}
			if got.Token != "" {
				a.Print("token: %s", terminal.Clean(got.Token))
				a.Print("connect to: %s", terminal.Clean(got.URL))
				a.Note("the token is shown only once; anyone who has it can act as the participant")
			}
		})
		return err
	})
}

// describeAbsent names the participants that missed an envelope because they are not connected, or returns "".
func describeAbsent(s mew.Sent, e mewEnvelope) string {
	switch {
	case strings.HasPrefix(e.Kind, "space/"), strings.HasPrefix(e.Kind, "capability/"):
		return "" // applies to absent participants, too
	case len(s.Absent) > 0:
		return "not connected: " + strings.Join(s.Absent, ", ")
	case s.Listeners == 0:
		return "nobody else is connected"
	}
	return ""
}

type mewSpacesCmd struct{}

func (c *mewSpacesCmd) Run(ctx context.Context, a *app) error {
	all, err := withResult(ctx, a, func(o *daemon.Client) (mewSpaces, error) { return listMewSpaces(ctx, o) })
	if err != nil {
		return err
	}
	return a.report(all, func() {
		rows := [][]string{{"SPACE", "WHERE", "STATE", "PARTICIPANTS", "STREAMS", "PROPOSALS"}}
		for _, s := range all.Hosted {
			rows = append(rows, []string{s.ID, "here", fmt.Sprintf("%d connected", s.Connected), strconv.Itoa(s.Participants), strconv.Itoa(s.Streams), strconv.Itoa(s.Proposals)})
		}
		for _, l := range all.Linked {
			rows = append(rows, []string{l.Space, "link " + l.Link, string(l.State), strconv.Itoa(l.Participants), "-", strconv.Itoa(l.Proposals)})
		}
		a.List(rows, "no spaces and no links to spaces are configured; docs/bridges/mew.md explains how to add them")
	})
}

type mewStatusCmd struct {
	Participant string `arg:"" optional:"" help:"Participant to ask for its status."`
	mewTarget
}

func (c *mewStatusCmd) Run(ctx context.Context, a *app) error {
	if c.Participant != "" {
		e := mewEnvelope{Kind: "participant/request-status", To: []string{c.Participant}, Payload: struct{}{}}
		return c.send(ctx, a, e, "asked; agentmesh mew tail shows the answer")
	}
	return a.withClient(ctx, func(o *daemon.Client) error {
		path, err := c.path(ctx, o)
		if err != nil {
			return err
		}
		raw, err := o.Call(ctx, http.MethodGet, path, nil, nil)
		_, err = showAnswer(a, raw, err, a.showSpace)
		return err
	})
}

// showSpace prints a space. All texts in it are from others and must be cleaned.
func (a *app) showSpace(s view.Space) {
	rows := [][]string{{"PARTICIPANT", "ID", "STATE", "CAPABILITIES"}}
	for _, p := range s.Participants {
		var capabilities []string
		for _, raw := range p.Capabilities {
			capabilities = append(capabilities, string(raw))
		}
		text := strings.Join(capabilities, " ")
		rows = append(rows, []string{p.Name, p.ID, p.State(), text[:min(len(text), 200)]})
	}
	a.List(rows, "nobody is there")
	for _, p := range s.Proposals {
		a.Print("proposal %s from %s, %s: %s", p.Key, terminal.Clean(s.NameOf(p.From)), terminal.FormatTime(p.At), terminal.Clean(string(p.Payload[:min(len(p.Payload), 300)])))
	}
	for _, r := range s.Reasoning {
		a.Print("reasoning %s of %s since %s", terminal.Clean(r.ID), terminal.Clean(s.NameOf(r.From)), terminal.FormatTime(r.Since))
	}
	for _, raw := range s.Streams {
		a.Print("stream %s", terminal.Clean(string(raw[:min(len(raw), 300)])))
	}
}

type mewTailCmd struct {
	mewTarget
	Count int `help:"Stop after this number of envelopes; 0 never stops." short:"n"`
}

func (c *mewTailCmd) Run(ctx context.Context, a *app) error {
	return c.withRunningSpace(ctx, a, func(o *daemon.Client, path string) error {
		n, space := 0, view.Space{}
		err := followMewEvents(ctx, o, path, func(raw string, v wire.Value) (bool, error) {
			if a.globals.JSON {
				a.Print("%s", terminal.EscapeUnsafe([]byte(raw)))
			} else {
				if n == 0 || v.GetStr("kind") == envelope.KindPresence { // somebody may have joined
					if got, err := o.Call(ctx, http.MethodGet, path, nil, nil); err == nil {
						space, _ = daemon.Decode[view.Space](got)
					}
				}
				a.Print("%s", terminal.Clean(space.Line(v)))
			}
			n++
			return c.Count > 0 && n >= c.Count, a.WriteError()
		}, a)
		if ctx.Err() != nil {
			return nil // the user stopped it
		}
		return err
	})
}

// followMewEvents follows the envelopes of a space. It calls visit for each envelope until visit returns true.
func followMewEvents(ctx context.Context, o *daemon.Client, path string, visit func(string, wire.Value) (bool, error), a *app) error {
	resp, err := o.Do(ctx, http.MethodGet, path+"/events", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 2*envelope.MaxEnvelope)
	lost := false
	for lines.Scan() {
		line := lines.Text()
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case line == "event: lost":
			lost = true
		case ok && lost:
			a.Note("%s envelopes were lost: they came faster than this command read them", terminal.Clean(data))
			lost = false
		case ok:
			v, err := wire.ParseForeign([]byte(data), envelope.MaxDepth, envelope.MaxValues)
			if err != nil {
				continue
			}
			if end, err := visit(data, v); end || err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil {
		return exit.Fail(exit.Unavailable, err)
	}
	return exit.Fail(exit.Unavailable, errors.New("the running agentmesh ended the stream"))
}

type mewConnectCmd struct{ linkArg }

func (c *mewConnectCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, postCall[bridge.LinkStatus]("mew/links/"+url.PathEscape(c.Link)+"/connect", nil), func(l bridge.LinkStatus) {
		a.Print("%s is %s and connects now", terminal.Clean(l.Name), l.State)
	})
}
