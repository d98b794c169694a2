package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Setup is what the pages need from the process around the node: the configuration that a form changes, the programs
// that are connected, and look-ups.
type Setup interface {
	Profile() Profile
	// SaveProfile writes a profile into the configuration. The process then starts again with it. After an error,
	// nothing has changed, and the page shows the error to the owner.
	SaveProfile(ctx context.Context, p Profile) error
	// Programs returns which programs answer messages for the owner.
	Programs() Programs
	// LookUp asks each directory for the card of one agent, and for what the directory has checked about it. The result
	// has no entry for a directory that does not list the agent.
	LookUp(ctx context.Context, id wire.AgentID) []owner.Found
	// EchoAddress returns the address of the echo agent, which is part of the process and answers every message.
	EchoAddress() string
}

// Profile is what the owner says about the agent.
type Profile struct {
	Name, Owner, Description string
	Zone                     string // the owner's time zone; "" is that of the machine
	Directories              []string
	// Fixed are the keys of the configuration that a flag or an environment variable sets.
	Fixed []string
	File  string // the configuration file
	// Fresh reports that the owner has not chosen a name yet.
	Fresh bool
}

// IsFixed reports whether a flag or an environment variable sets a key of the configuration.
func (p Profile) IsFixed(key string) bool { return slices.Contains(p.Fixed, key) }

// DirectoryLines returns the directories, one on each line.
func (p Profile) DirectoryLines() string { return strings.Join(p.Directories, "\n") }

// Programs are the programs behind the agent.
type Programs struct {
	Hooks    []string  // names of the configured hooks
	DoorUsed time.Time // when a program last called the API for the owner's agent; zero: not since the start
	Data     string    // the data directory
}

// NoProgram reports whether nothing answers messages except the owner.
func (p Programs) NoProgram() bool { return len(p.Hooks) == 0 && p.DoorUsed.IsZero() }

// maxDirectories bounds the directories in the form, unless the configuration has more already.
const maxDirectories = 20

type profileView struct {
	Profile
	Status    owner.Status
	Card      json.RawMessage
	NoProgram bool
}

func (p *pages) renderProfile(c echo.Context, status int, errorText string, profile Profile) error {
	state, err := p.n.Overview(c.Request().Context(), httpapi.MaxCount)
	if err != nil {
		return err
	}
	title := "Your agent"
	if profile.Fresh {
		title = "Welcome"
	}
	return p.shell.Render(c, p.profile, httpapi.View{
		Title: title, Status: status, Error: errorText, Done: p.doneMessage(c), Topics: []string{string(owner.TopicStatus)},
		Self: httpapi.PagePath + "/profile",
		Data: profileView{Profile: profile, Status: state, Card: p.n.Card().Tree.JSON(), NoProgram: p.setup.Programs().NoProgram()},
	})
}

// saveProfile changes the configuration. The browser gets the response before the process starts again, and its request
// for the next page waits until the process has started.
func (p *pages) saveProfile(c echo.Context, form url.Values) error {
	profile := p.setup.Profile()
	limit := max(maxDirectories, len(profile.Directories))
	if form.Get("keep") == "" { // keep is the button that skips the form
		profile.Name, profile.Owner = strings.TrimSpace(form.Get("name")), strings.TrimSpace(form.Get("owner"))
		profile.Description = strings.TrimSpace(form.Get("description"))
		profile.Zone = strings.TrimSpace(form.Get("zone"))
		profile.Directories = strings.Fields(form.Get("directories"))
	}
	if n := len(profile.Directories); n > limit {
		errorText := fmt.Sprintf("Nothing was saved: the form takes at most %d directories, not %d. Add more in the configuration file.", limit, n)
		return p.renderProfile(c, http.StatusBadRequest, errorText, profile)
	}
	if err := p.setup.SaveProfile(c.Request().Context(), profile); err != nil {
		return p.renderProfile(c, http.StatusBadRequest, "Nothing was saved: "+err.Error(), profile)
	}
	return httpapi.Done(c, "profile", "profile")
}

func (p *pages) sayHello(c echo.Context, _ url.Values) error {
	_, payload, err := replyForm{Text: "Hello! Is anybody there?"}.payload(wire.Deliver)
	if err != nil {
		return err
	}
	const answerWait = 3 * time.Second
	sent, err := p.n.Send(c.Request().Context(), owner.NewMessage{To: p.setup.EchoAddress(), Intent: wire.Deliver, Payload: payload}, answerWait)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.renderProfile(c, refusal.Status, refusal.Message, p.setup.Profile())
	}
	if err != nil {
		return err
	}
	return doneSent(c, sent, "hello")
}

// way is a way to connect a program, with what the owner copies for it.
type way struct{ ID, Title, Before, Text, After string }

// ways returns the ways to connect a program. mcp are the words of the command that offers the tools, and docs/agents.md has
// the first ones as they are here, for "agentmesh mcp". file is the configuration.
func ways(mcp []string, file string) []way {
	var words, args []string
	for i, word := range mcp {
		words = append(words, shellWord(word))
		if i > 0 {
			args = append(args, "--arg "+shellWord(word))
		}
	}
	command := strings.Join(words, " ")
	entry := `{"mcpServers":{"agentmesh":{"command":` + string(wire.MustMarshal(mcp[0])) + `,"args":` + string(wire.MustMarshal(mcp[1:])) + `}}}`
	return []way{
		{"claude", "Claude Code", "Run this, for all folders:", "claude mcp add --scope user agentmesh -- " + command, ""},
		{"codex", "Codex", "Run this:", "codex mcp add agentmesh -- " + command, ""},
		{"cursor", "Cursor", "Put this into ~/.cursor/mcp.json. If the file exists, add the entry to its mcpServers:", entry, ""},
		{"openclaw", "OpenClaw", "Run this, where OpenClaw runs:", "openclaw mcp add agentmesh --command " + words[0] + " " + strings.Join(args, " "), ""},
		{
			"script", "A program of yours", "It gets each message as JSON and prints its answer. This makes the smallest one, which repeats what was written:",
			"cat > answer.sh <<'END'\n" + hookScript + "\nEND\nchmod +x answer.sh", "Put it beside " + file + ", add the lines below to that file, and start agentmesh again:",
		},
	}
}

// hookLines are the lines of the configuration for a hook.
const hookLines = "hooks:\n  - intent: mesh.message\n    exec: [./answer.sh]"

type connectView struct {
	Programs
	Ways []way
	Hook way
}

func (p *pages) showConnect(c echo.Context) error {
	programs := p.setup.Programs()
	view := connectView{
		Programs: programs, Ways: ways([]string{"agentmesh", "--data", programs.Data, "mcp"}, p.setup.Profile().File), Hook: way{ID: "hook", Title: "the lines of the hook", Text: hookLines},
	}
	return p.shell.Render(c, p.connect, httpapi.View{Title: "Connect your agent", Topics: []string{topicPrograms}, Data: view})
}

// topicPrograms is a topic only for pages: a program used the agent's door for the first time since the start.
const topicPrograms = "programs"

// followPrograms looks, while a page is open, whether a program has connected.
func (p *pages) followPrograms(ctx context.Context, changed func(string)) {
	for tick := time.Tick(2 * time.Second); p.setup.Programs().DoorUsed.IsZero(); {
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
	changed(topicPrograms)
	<-ctx.Done()
}

// hookScript is the smallest hook: it repeats the text of each message in its answer.
const hookScript = `#!/bin/sh
text=$(jq -r '.message.payload.message.body // "nothing"')
jq -n --arg body "You wrote: $text" '{payload: {action: "deliver", message: {body: $body}}}'`

// shellWord quotes a text for a shell, if it needs quotes.
func shellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
