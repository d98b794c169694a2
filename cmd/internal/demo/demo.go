// Package demo runs the scheduling flow of the specification (§10) for real: three processes of this program, each with
// its own data directory, which communicate only by HTTP with signed messages.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Options configures the demo.
type Options struct {
	UI      *terminal.UI
	Environ []string
	Keep    bool // keep directory and agents running, with some sample cards, until the context ends
	JSON    bool // print the result as JSON
}

// demoTime bounds the whole flow.
const demoTime = time.Minute

// Run runs the demo and prints its result. The error has an exit code.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := os.MkdirTemp("", "agentmesh-demo-")
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	defer os.RemoveAll(dir)
	d := &demo{Options: o, dir: dir}
	defer func() { err = errors.Join(err, d.stop()) }()

	limited, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	result, err := d.run(limited)
	if err != nil {
		return errors.Join(exit.Fail(exit.Unavailable, err), d.logErrors())
	}
	if o.JSON {
		err = o.UI.JSON(result)
	} else {
		d.show(result)
	}
	if err != nil || !o.Keep {
		return errors.Join(err, result.err())
	}
	return errors.Join(d.keepRunning(ctx), result.err())
}

// demo holds the processes of a running demo.
type demo struct {
	Options
	dir string

	directory, chris, sarah *child
	children                []*child // those that run
}

type demoResult struct {
	Transcript []demoLine        `json:"transcript"`
	States     map[string]string `json:"states"`  // state of the conversation, by owner
	Notices    map[string]string `json:"notices"` // the notice about the agreed event, by owner
}

// demoLine is one message. Verified reports whether the demo could verify the signature with the key in the directory,
// and Form is the canonical form that was signed.
type demoLine struct {
	From     string          `json:"from"`
	To       string          `json:"to"`
	FromID   wire.AgentID    `json:"from_id"`
	ToID     wire.AgentID    `json:"to_id"`
	Action   string          `json:"action"`
	Verified bool            `json:"verified"`
	Form     string          `json:"form,omitempty"`
	Payload  json.RawMessage `json:"payload"`
}

func (r demoResult) err() error {
	for _, l := range r.Transcript {
		if !l.Verified {
			return exit.Fail(exit.No, errors.New("a signature of the transcript does not verify"))
		}
	}
	return nil
}

func (d *demo) note(format string, args ...any) {
	if !d.JSON {
		d.UI.Note(format, args...)
	}
}

func (d *demo) run(ctx context.Context) (demoResult, error) {
	if err := d.start(ctx); err != nil {
		return demoResult{}, err
	}
	sarah, err := d.findSarah(ctx)
	if err != nil {
		return demoResult{}, err
	}
	d.note("Chris's agent found %s by q=sarah&capability=scheduling", sarah)
	conv, err := d.negotiate(ctx, sarah)
	if err != nil {
		return demoResult{}, err
	}
	result := demoResult{States: map[string]string{}, Notices: map[string]string{}}
	for _, c := range []*child{d.chris, d.sarah} {
		if result.States[c.name], err = c.awaitCompletion(ctx, conv); err != nil {
			return demoResult{}, err
		}
		if result.Notices[c.name], err = c.agreementNotice(ctx); err != nil {
			return demoResult{}, err
		}
	}
	result.Transcript, err = d.transcript(ctx, conv)
	return result, err
}

func (d *demo) start(ctx context.Context) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if d.directory, err = d.spawn(ctx, self, "directory", "--roles=directory"); err != nil {
		return err
	}
	join := "--directory=" + d.directory.info.Directory
	d.note("a directory runs at %s", d.directory.info.Directory)
	if d.chris, err = d.spawn(ctx, self, "Chris", "--roles=node", join, "--name=Chris's Assistant"); err != nil {
		return err
	}
	hook := wire.Arr(wire.Obj(
		wire.TextField("intent", string(wire.Schedule)),
		wire.Field("exec", wire.Texts([]string{self, "demo-hook"})),
	))
	d.sarah, err = d.spawn(ctx, self, "Sarah", "--roles=node", join, "--name=Sarah's Assistant",
		"--set=access.allow="+string(d.chris.info.AgentID), "--set=hooks="+string(hook.JSON()))
	if err != nil {
		return err
	}
	for _, c := range []*child{d.chris, d.sarah} {
		if err := c.awaitRegistration(ctx); err != nil {
			return err
		}
		d.note("%s's agent %s runs at %s", c.name, c.info.AgentID, c.info.Endpoint)
	}
	return nil
}

func (d *demo) findSarah(ctx context.Context) (wire.AgentID, error) {
	query := url.Values{"q": {"sarah"}, "capability": {"scheduling"}}
	page, err := daemon.Fetch(ctx, d.chris.owner, owner.Discover.Call().WithQuery(query))
	if err != nil {
		return "", fmt.Errorf("discover Sarah: %w", err)
	}
	if len(page.Items) != 1 || len(page.Items[0].Listing.Agents) != 1 {
		return "", fmt.Errorf("discover Sarah: want one agent, got %v", page.Items)
	}
	return wire.AgentID(page.Items[0].Listing.Agents[0].GetStr("agent_id")), nil
}

// negotiate proposes an event, checks that Sarah's hook answers with a counterproposal, and accepts that.
func (d *demo) negotiate(ctx context.Context, sarah wire.AgentID) (conv string, err error) {
	first := nextFriday(time.Now())
	event := wire.Obj(
		wire.TextField("title", "Coffee catch-up"),
		wire.Field("proposed_times", wire.Texts([]string{
			first.Format(time.RFC3339), first.Add(4 * time.Hour).Format(time.RFC3339),
		})),
		wire.TextField("duration", "30m"),
	)
	reply, err := d.chris.sendSchedule(ctx, sarah, "", wire.Obj(
		wire.TextField("action", "propose"),
		wire.Field("event", event),
	))
	if err != nil {
		return "", fmt.Errorf("propose: %w", err)
	}
	if got := reply.Action(); got != "counter" {
		return "", fmt.Errorf("propose: Sarah's agent answered %q, want a counter", got)
	}
	conv = string(reply.Conversation)
	if _, err := d.chris.sendSchedule(ctx, sarah, conv, wire.Obj(wire.TextField("action", "accept"))); err != nil {
		return "", fmt.Errorf("accept: %w", err)
	}
	return conv, nil
}

// nextFriday returns ten in the morning of the first Friday that is at least two calendar days ahead.
func nextFriday(now time.Time) time.Time {
	t := time.Date(now.Year(), now.Month(), now.Day()+2, 10, 0, 0, 0, now.Location())
	return t.AddDate(0, 0, int(time.Friday-t.Weekday()+7)%7)
}

// messageCount is the number of messages of the flow. The last one is Sarah's answer to the close of Chris's node. It
// arrives after Chris's conversation is completed.
const messageCount = 6

// transcript reads the conversation from Chris's node and verifies every signature with the key in the directory.
func (d *demo) transcript(ctx context.Context, conv string) ([]demoLine, error) {
	var conversation owner.Transcript
	err := poll(ctx, "Sarah's node did not confirm the close", func() (_ bool, err error) {
		conversation, err = daemon.Fetch(ctx, d.chris.owner, owner.ShowConversation.Call(conv)) // it fits on one page
		return len(conversation.Transcript) >= messageCount, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the transcript: %w", err)
	}
	calls := client.NewHTTP(client.HTTPConfig{Local: true})
	defer calls.Close()
	directory := client.NewDirectory(d.directory.info.Directory, calls, nil)
	names := map[wire.AgentID]string{d.chris.info.AgentID: d.chris.name, d.sarah.info.AgentID: d.sarah.name}
	var lines []demoLine
	for _, e := range conversation.Transcript {
		v, err := wire.ParseObject(e.Message)
		if err != nil {
			return nil, fmt.Errorf("read the transcript: %w", err)
		}
		m, err := wire.ParseMessage(v)
		if err != nil {
			return nil, fmt.Errorf("read the transcript: %w", err)
		}
		line := demoLine{From: names[m.From], To: names[m.To], FromID: m.From, ToID: m.To, Action: m.Action(), Payload: m.Payload.JSON()}
		if signature, err := verifyWithCard(ctx, directory, m); err == nil {
			line.Verified, line.Form = true, signature.Form.String()
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func verifyWithCard(ctx context.Context, directory *client.Directory, m wire.Message) (signing.Verified, error) {
	card, err := directory.Card(ctx, m.From)
	if err != nil {
		return signing.Verified{}, err
	}
	key, err := signing.ParsePublicKey(card.GetStr("public_key"))
	if err != nil {
		return signing.Verified{}, err
	}
	return key.VerifyValue(m.Tree.Without("signature"), m.Signature, signing.AnyTime(), time.Now())
}

func (d *demo) show(r demoResult) {
	ui := d.UI
	ui.Print("")
	for _, l := range r.Transcript {
		mark := "signature verified"
		if !l.Verified {
			mark = "SIGNATURE BAD"
		}
		ui.Print("%-5s → %-5s  %-8s  %s", l.From, l.To, terminal.Clean(l.Action), mark)
		ui.Print("               %s", terminal.Truncate(wire.UnescapeHTML(l.Payload), 200))
	}
	ui.Print("")
	for _, name := range []string{"Chris", "Sarah"} {
		ui.Print("%s's side: conversation %s, notice: %s", name, r.States[name], terminal.Clean(r.Notices[name]))
	}
}

func (c *child) agreementNotice(ctx context.Context) (string, error) {
	page, err := daemon.Fetch(ctx, c.owner, owner.ListNotices.Call())
	if err != nil {
		return "", fmt.Errorf("read %s's notices: %w", c.name, err)
	}
	for _, n := range page.Items {
		if n.Kind == notify.Agreed {
			return n.Title + ": " + n.Text, nil
		}
	}
	return "", fmt.Errorf("%s has no notice about the agreed event", c.name)
}

func (d *demo) keepRunning(ctx context.Context) error {
	if err := d.registerSamples(ctx); err != nil {
		return exit.Fail(exit.Unavailable, err)
	}
	ui := d.UI
	ui.Note("directory and agents keep running; stop them with ctrl-c; try:")
	ui.Note("  curl '%s/agents?q=sarah'", d.directory.info.Directory)
	ui.Note("  curl '%s/agents?capability=translation'", d.directory.info.Directory)
	ui.Note("  agentmesh --data %s inbox", filepath.Join(d.dir, "Sarah"))
	ui.Note("  agentmesh --data %s conversations", filepath.Join(d.dir, "Chris"))
	<-ctx.Done()
	return nil
}

// registerSamples registers cards of agents that do not run, so that the user has more cards to search.
func (d *demo) registerSamples(ctx context.Context) error {
	calls := client.NewHTTP(client.HTTPConfig{Local: true})
	defer calls.Close()
	directory := client.NewDirectory(d.directory.info.Directory, calls, nil)
	for _, s := range []struct{ name, about, capability string }{
		{"Ada's Translator", "Translates letters between English, French and German.", "translation"},
		{"Bean & Leaf Orders", "Takes orders for coffee beans and tea.", "commerce"},
		{"Studio Nguyen", "Freelance design: logos, posters, small websites.", "design"},
	} {
		key, err := signing.GenerateEd25519()
		if err != nil {
			return err
		}
		card := wire.Obj(
			wire.TextField("agentmesh", wire.Version),
			wire.TextField("agent_id", string(key.Public().AgentID())),
			wire.TextField("name", s.name),
			wire.TextField("description", s.about+" A sample card: nobody answers."),
			wire.TextField("endpoint", "http://127.0.0.1:9/agentmesh"),
			wire.TextField("public_key", key.PublicText()),
			wire.Field("capabilities", wire.Texts([]string{s.capability})),
			wire.Field("intents", wire.Texts([]wire.Intent{wire.Deliver})),
		)
		if _, _, err := directory.Register(ctx, card, client.NewCredential(), key); err != nil {
			return fmt.Errorf("register the sample %s: %w", s.name, err)
		}
	}
	return nil
}
