// Package quickstart sets up a new directory or agent. It makes the data directory, writes a commented configuration,
// and prints what the operator still has to do on the machine and at the name server.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/client"
)

// Command has the commands that set up a new process.
type Command struct {
	Directory Directory `cmd:"" help:"Set up a directory under a public name."`
	Agent     Agent     `cmd:"" help:"Set up an agent: under a public name, or behind the mailbox of a directory."`
}

// Env is what the commands need from the program.
type Env struct {
	*terminal.UI
	JSON    bool
	Dir     datadir.Dir
	File    string                         // the configuration to write
	Options func() (daemon.Options, error) // reads and checks that file
}

// NetworkFlags has the flags for how others reach the process.
type NetworkFlags struct {
	TLS   bool   `name:"tls" xor:"edge" help:"Serve HTTPS on port 443 (and redirects on port 80), with a certificate from Let's Encrypt. With this flag you accept the terms of Let's Encrypt."`
	Proxy bool   `name:"proxy" xor:"edge" help:"Serve plain HTTP on 127.0.0.1:3141 for a reverse proxy on this machine."`
	User  string `default:"agentmesh" help:"User that the service runs as."`
	Yes   bool   `help:"Ask nothing, and use the defaults."`

	Domain string `kong:"-"` // the host name under which others reach the process, or ""
}

// Directory sets up a directory.
type Directory struct {
	NetworkFlags
	Mail  string `name:"contact" placeholder:"ADDRESS" help:"Mail address of the operator. It is published."`
	Title string `placeholder:"TEXT" help:"Title of the public pages."`
	Mode  string `enum:"open,invite,closed," default:"" placeholder:"MODE" help:"Registration mode: open (anybody), invite (with a code that you make) or closed (nobody)."`
	Name  string `arg:"" help:"Public host name, such as mesh.example.org."`
}

// Agent sets up an agent.
type Agent struct {
	NetworkFlags
	Title string `name:"name" placeholder:"TEXT" help:"Name of the agent, as others see it."`
	Owner string `placeholder:"TEXT" help:"Name of the person behind the agent. It is published."`
	Join  string `placeholder:"LINK" help:"Join a directory: the link from its operator (https://…/join#CODE), or its base URL (https://…/v1)."`
	Host  string `arg:"" optional:"" name:"name" help:"Public host name. Without one, the agent receives through a mailbox at its directory or, if it joins none, from this machine."`

	Directory  string `kong:"-"` // the base URL of the directory to join
	InviteFile string `kong:"-"` // the file with the link, as the configuration names it, if the link has a code
}

// Run makes a directory.
func (d *Directory) Run(ctx context.Context, e Env) error {
	q, err := d.begin(e, d.Name)
	if err != nil {
		return err
	}
	q.askText(&d.Title, "title of the public pages", "Agents of "+d.Domain)
	d.askNetwork(q)
	q.askText(&d.Mail, "mail address of the operator, which is published (empty: none)", "")
	q.askChoice(&d.Mode, "who may register", "invite", "open", "closed")
	if err := q.err; err != nil {
		return err
	}
	text, err := render("directory", d)
	if err != nil {
		return err
	}
	o, err := write(e, text)
	if err == nil {
		err = undoOnError(e, daemon.InitDirectory(ctx, o))
	}
	if err != nil {
		return err
	}
	return d.finish(e, o.Config, "directory")
}

// Run makes an agent.
func (a *Agent) Run(ctx context.Context, e Env) error {
	q, err := a.begin(e, a.Host)
	if err != nil {
		return err
	}
	q.askText(&a.Title, "name of the agent", config.Default().Name)
	q.askText(&a.Owner, "your name, which is published (empty: none)", "")
	if a.Host == "" {
		q.askText(&a.Join, "link to the directory that keeps your mail, such as https://mesh.example.org/join#CODE (empty: run one here, for this machine)", "")
	} else {
		q.askText(&a.Join, "link to a directory to join (empty: none)", "")
		a.askNetwork(q)
	}
	if err := q.err; err != nil {
		return err
	}
	if err := a.readJoin(e); err != nil {
		return err
	}
	text, err := render("agent", a)
	if err != nil {
		return err
	}
	o, err := write(e, text)
	if err == nil && a.InviteFile != "" {
		err = undoOnError(e, atomicfile.WriteNew(e.Dir.Path(datadir.FileInvites), []byte(a.Join+"\n")))
	}
	if err == nil {
		err = undoOnError(e, daemon.Init(ctx, o, nil))
	}
	if err != nil {
		return err
	}
	return a.finish(e, o.Config, "agent")
}

// readJoin sets the directory, and the file for the link if it has a code.
func (a *Agent) readJoin(e Env) (err error) {
	if a.Directory = strings.TrimRight(a.Join, "/"); a.Join == "" || strings.HasSuffix(a.Directory, "/v1") {
		return nil
	}
	base, code, err := client.ParseJoinLink(a.Join)
	if err != nil {
		return exit.FailHint(exit.Usage, fmt.Errorf("--join: %w", err), "the operator of the directory makes one with agentmesh token create")
	}
	if a.Directory = base; code != "" {
		a.InviteFile, err = config.Source{File: e.File}.ShortenPath(e.Dir.Path(datadir.FileInvites))
	}
	return err
}

// begin refuses a malformed user or host name, and a data directory with content. It returns a prompter for what the
// flags leave open.
func (g *NetworkFlags) begin(e Env, name string) (*prompter, error) {
	if !isPlain(g.User) || strings.HasPrefix(g.User, "-") {
		return nil, exit.Fail(exit.Usage, fmt.Errorf("--user %s is not a user name", terminal.Clean(g.User)))
	}
	if name != "" {
		if !isPlain(name) || !strings.Contains(strings.Trim(name, "."), ".") {
			return nil, exit.FailHint(exit.Usage, fmt.Errorf("%s is not a public host name", terminal.Clean(name)), "write only the name, such as mesh.example.org")
		}
	}
	g.Domain = strings.ToLower(strings.TrimSuffix(name, "."))
	switch list, err := os.ReadDir(string(e.Dir)); {
	case err == nil && len(list) > 0:
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the data directory %s is not empty", e.Dir), "name a new one with --data")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, exit.FailHint(exit.Config, fmt.Errorf("read the data directory: %w", err), "name a new one with --data")
	}
	return newPrompter(e, g.Yes), nil
}

// isPlain reports whether a name stays one word in YAML, in a shell and in a systemd unit.
func isPlain(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == ""
}

func (g *NetworkFlags) askNetwork(q *prompter) {
	how := ""
	for q.err == nil && !g.TLS && !g.Proxy && how != "tls" && how != "proxy" {
		how = ""
		q.askRequired(&how, "--tls or --proxy", "who serves HTTPS: tls (this process, with a certificate from Let's Encrypt, whose terms you accept) or proxy")
	}
	g.TLS, g.Proxy = g.TLS || how == "tls", g.Proxy || how == "proxy"
}

// write makes the data directory if necessary, stores the configuration, and reads it back.
func write(e Env, text []byte) (daemon.Options, error) {
	if _, err := datadir.Open(string(e.Dir)); err != nil {
		return daemon.Options{}, err
	}
	if err := atomicfile.WriteNew(e.File, text); err != nil {
		return daemon.Options{}, exit.FailHint(exit.Config, fmt.Errorf("write the configuration: %w", err), "name another file with --config")
	}
	o, err := e.Options()
	return o, undoOnError(e, err)
}

// undoOnError removes the configuration and the content of the data directory if err is not nil, so that the user can
// try again. The directory was empty before. The content stays if another process has begun to use the directory.
// undoOnError returns err.
func undoOnError(e Env, err error) error {
	if err == nil {
		return nil
	}
	err = errors.Join(err, os.Remove(e.File))
	if errors.Is(err, datadir.ErrInUse) {
		return err
	}
	list, readErr := os.ReadDir(string(e.Dir))
	err = errors.Join(err, readErr)
	for _, entry := range list {
		err = errors.Join(err, os.RemoveAll(e.Dir.Path(entry.Name())))
	}
	return err
}
