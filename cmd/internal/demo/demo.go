// Package demo runs the scheduling flow of the specification (§10) for real: three processes of this program, each with
// its own data directory, which communicate only by HTTP with signed messages. The agents of the two nodes settle a coffee
// by themselves. About a dinner they never agree, and are stopped.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	Keep    bool // keep directory and agents running until the context ends
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
	d.keepRunning(ctx)
	return result.err()
}

// demo holds the processes of a running demo.
type demo struct {
	Options
	dir string

	directory, chris, sarah *child
	children                []*child // those that run
}

type demoResult struct {
	Transcript []demoLine        `json:"transcript"` // about the coffee
	Dinner     []demoLine        `json:"dinner"`
	Question   string            `json:"question"` // what Sarah is asked about the dinner
	States     map[string]string `json:"states"`   // state of the conversation, by owner
	Notices    map[string]string `json:"notices"`  // the notice about the agreed event, by owner
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
	for _, l := range slices.Concat(r.Transcript, r.Dinner) {
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
	day := nextFriday(time.Now())
	conv, err := d.chris.propose(ctx, sarah, "Coffee", "30m", day.Add(10*time.Hour), day.Add(14*time.Hour))
	if err != nil {
		return demoResult{}, fmt.Errorf("propose a coffee: %w", err)
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
	if result.Transcript, err = d.transcript(ctx, conv, messageCount); err != nil {
		return demoResult{}, err
	}
	if conv, err = d.chris.propose(ctx, sarah, dinner, "2h", day.Add(19*time.Hour)); err != nil {
		return demoResult{}, fmt.Errorf("propose a dinner: %w", err)
	}
	if result.Question, err = d.sarah.awaitQuestion(ctx); err != nil {
		return demoResult{}, err
	}
	result.Dinner, err = d.transcript(ctx, conv, 1)
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
	agent := func(name string, args ...string) (*child, error) {
		hook := wire.Arr(wire.Obj(
			wire.TextField("intent", string(wire.Schedule)),
			wire.Field("exec", wire.Texts([]string{self, "demo-hook", name})),
		))
		return d.spawn(ctx, self, name, append([]string{"--roles=node", join, "--name=" + name + "'s Assistant", "--set=hooks=" + string(hook.JSON())}, args...)...)
	}
	if d.chris, err = agent("Chris"); err != nil {
		return err
	}
	if d.sarah, err = agent("Sarah", "--set=access.allow="+string(d.chris.info.AgentID)); err != nil {
		return err
	}
	for _, c := range []*child{d.chris, d.sarah} {
		if err := c.awaitRegistration(ctx); err != nil {
			return err
		}
		d.note("%s's agent runs at %s", c.name, c.info.Endpoint)
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

// nextFriday returns the first Friday that is at least two calendar days ahead.
func nextFriday(now time.Time) time.Time {
	t := time.Date(now.Year(), now.Month(), now.Day()+2, 0, 0, 0, 0, now.Location())
	return t.AddDate(0, 0, int(time.Friday-t.Weekday()+7)%7)
}

// messageCount is the number of messages about the coffee. The last one is Sarah's answer to the close of Chris's node. It
// arrives after Chris's conversation is completed.
const messageCount = 6

// transcript reads the conversation from Chris's node once it has enough messages, and verifies every signature with the
// key in the directory.
func (d *demo) transcript(ctx context.Context, conv string, enough int) ([]demoLine, error) {
	var conversation owner.Transcript
	err := poll(ctx, "the conversation is not complete", func() (_ bool, err error) {
		conversation, err = daemon.Fetch(ctx, d.chris.owner, owner.ShowConversation.Call(conv)) // it fits on one page
		return len(conversation.Transcript) >= enough, err
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
		l.show(ui)
	}
	for _, name := range []string{"Chris", "Sarah"} {
		ui.Print("%s was told: %s", name, terminal.Clean(r.Notices[name]))
	}
	ui.Print("")
	for _, l := range r.Dinner[:min(4, len(r.Dinner))] {
		l.show(ui)
	}
	ui.Print("… and so on: neither gives in.")
	ui.Print("Sarah's agent stopped and asked her: %s. May it go on?", terminal.Clean(r.Question))
	ui.Print("")
	if r.err() == nil {
		ui.Print("The directory's keys prove all %d signatures.", len(r.Transcript)+len(r.Dinner))
	}
}

// show prints what the agent did in words of people, unless it only confirmed something.
func (l demoLine) show(ui *terminal.UI) {
	payload, _ := wire.ParseObject(l.Payload)
	event, _ := payload.Get("event")
	var times []string
	for _, text := range timesOf(event) {
		at, _ := wire.ParseTime(text)
		times = append(times, at.Format("Mon 15:04"))
	}
	verb := map[string]string{"propose": "asked", "counter": "offered", "accept": "agreed"}[l.Action]
	if verb == "" {
		return
	}
	what := []string{strings.Join(times, " or "), event.GetStr("duration"), event.GetStr("location")}
	if l.Action == "propose" {
		what = append([]string{event.GetStr("title")}, what...)
	}
	what = slices.DeleteFunc(what, func(s string) bool { return s == "" })
	ui.Print("%s", terminal.Clean(strings.TrimSuffix(l.From+"'s agent "+verb+": "+strings.Join(what, ", "), ": ")))
}

// awaitQuestion waits until the owner is asked something, and returns why.
func (c *child) awaitQuestion(ctx context.Context) (why string, err error) {
	err = poll(ctx, c.name+" is asked nothing", func() (bool, error) {
		page, err := daemon.Fetch(ctx, c.owner, owner.ListApprovals.Call())
		if err != nil || len(page.Items) == 0 || len(page.Items[0].Messages) == 0 {
			return false, err
		}
		asked := page.Items[0]
		why = strings.ReplaceAll(asked.Messages[0].Reason, owner.ShortID(asked.Subject), strings.TrimSuffix(asked.Name, " Assistant")+" agent")
		return true, nil
	})
	return why, err
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

func (d *demo) keepRunning(ctx context.Context) {
	ui := d.UI
	ui.Note("directory and agents keep running; stop them with ctrl-c; try:")
	ui.Note("  curl '%s/agents?q=sarah'", d.directory.info.Directory)
	ui.Note("  agentmesh --data %s inbox", filepath.Join(d.dir, "Sarah"))
	ui.Note("  agentmesh --data %s conversations", filepath.Join(d.dir, "Chris"))
	<-ctx.Done()
}
